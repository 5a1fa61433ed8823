"""The command lines on a model folder: translate, score, attention, export."""

from __future__ import annotations

import io
import json
import math
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from command_line import wmt
from model_folders import WORDS, folder_of, parser_of

from nmt.common.tensors import load_tensors, save_tensors
from nmt.config import EOS, PAD, InputError, SearchSettings, TokenizerSettings
from nmt.deployment import ctranslate2_engine, export, streams
from nmt.evaluation.forced_scoring import Scored
from nmt.inference import attention_maps
from nmt.inference.alignment import alignment
from nmt.inference.loading import Models
from nmt.inference.search import Hypothesis
from nmt.inference.translator import Piece, Translator, split_sentences
from nmt.text import codec
from nmt.text.delinearisation import REPAIRS
from nmt.text.trees import read_trees

ROOT = Path(__file__).resolve().parents[3]
LINES = ["the old man sees a dog .", "", "She sleeps well", "we do !", "   ", "He did not see it"]


class Terminal(io.StringIO):
    """What is typed at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "model")


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def run(model: Path, tmp_path: Path, *options: str, lines: list[str] | None = None) -> list[str]:
    text = write(tmp_path / "in", LINES if lines is None else lines)
    out = tmp_path / "out"
    assert wmt("translate", str(model), "--input", str(text), "--output", str(out), *options) == 0
    return out.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def test_a_line_in_a_line_out_and_empty_lines_stay(model: Path, tmp_path: Path) -> None:
    found = run(model, tmp_path)
    assert len(found) == len(LINES)
    assert [not text for text in found] == [not line.strip() for line in LINES]
    # Neither windows nor batches change order or text.
    assert run(model, tmp_path, "--window", "2", "--batch-tokens", "20") == found
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "model", "model.subwords", "out"]
    (tmp_path / "unended").write_bytes((tmp_path / "in").read_bytes().removesuffix(b"\n"))
    assert wmt("translate", model, "--input", tmp_path / "unended", "--output", tmp_path / "again") == 0
    assert (tmp_path / "again").read_bytes() == (tmp_path / "out").read_bytes()


@pytest.mark.parametrize("workers", [1, 4])
def test_a_small_file_makes_two_batches_whatever_the_number_of_workers(
    model: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = Translator(model)
    ready.engine.workers = workers
    sizes: list[int] = []

    def translated(batch: Sequence[Piece], *_: Any) -> list[list[Hypothesis]]:
        sizes.append(sum(len(piece.ids) for piece in batch))
        return [[Hypothesis([], 0.0, 0.0)] for _ in batch]

    monkeypatch.setattr(ready.engine, "run", translated)
    length = len(ready.pieces(LINES[0])[0].ids)
    for lines in (80, 1024 // length):
        sizes.clear()
        assert len(list(ready.translate([LINES[0]] * lines))) == lines
        assert len(sizes) == 2
        assert max(sizes) <= 0.6 * sum(sizes)
    sizes.clear()
    list(ready.translate([LINES[0]] * (256 // length)))
    assert len(sizes) == 1, "hardly any work"


def test_at_a_terminal_it_answers_line_by_line(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("we do !\n\nShe sleeps\n"))
    assert wmt("translate", str(model)) == 0
    shown = capsys.readouterr()
    assert shown.out.replace("> ", "").count("\n") == 4
    assert "Ctrl-D" in shown.err


def test_json_tells_scores_and_attention(model: Path, tmp_path: Path) -> None:
    first, empty, *_ = (json.loads(line) for line in run(model, tmp_path, "--json", "--nbest", "3"))
    assert first["source"] == LINES[0]
    scores = [found["score"] for found in first["translations"]]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    attended = np.array(first["attention"])
    assert attended.shape == (len(first["translations"][0]["subwords"]) + 1, len(first["source_subwords"]))
    assert np.allclose(attended.sum(1), 1.0, atol=2e-3)
    assert empty["translations"] == []


def test_8_bit_weights_do_not_depend_on_the_batch(model: Path, tmp_path: Path) -> None:
    def scores(*options: str) -> list[float]:
        lines = [json.loads(line) for line in run(model, tmp_path, "--json", *options)]
        return [found["score"] for line in lines for found in line["translations"]]

    together = scores("--quantization", "int8")
    assert scores("--quantization", "int8", "--window", "1") == pytest.approx(together, abs=1e-3)
    assert scores() != pytest.approx(together, abs=1e-6)


def test_translating_does_not_import_torchs_compiler(model: Path) -> None:
    """It takes more than a second."""
    program = (
        "import sys, torch; from pathlib import Path; from nmt.inference.translator import Translator;"
        "list(Translator(Path(sys.argv[1]), torch.device('cpu')).translate(['a line']));"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(model)], check=True)


def test_a_search_in_another_thread_does_not_change_attention(model: Path) -> None:
    """As `--json` looks at one window's lines while workers search the next."""
    member = Models([model]).members[0]
    source, target = [5, 6, 7, EOS], [8, 9]
    expected = attention_maps.attention_of(member, source, target)
    other = torch.tensor([[5, 6, 7, 8, 9, EOS]])

    def search(*_: object) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(member.encode, other, (other != PAD)[:, None, None, :]).result()

    handle = member.decoder[0].register_forward_pre_hook(search)
    found = attention_maps.attention_of(member, source, target)
    handle.remove()
    assert all(torch.equal(found[name], expected[name]) for name in attention_maps.ATTENTIONS)


def test_a_blank_line_has_no_subwords_whatever_the_tokenizer(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Word pieces of raw text would encode the space."""
    models = Models([model])
    monkeypatch.setattr(models.subwords, "encode", lambda line: [5] * len(line))
    settings = TokenizerSettings(tokenizer="none", normalize_punctuation=False, aggressive_hyphens=False)
    models.source, _ = codec.tokenizers("en", "de", settings)
    assert [models.encode(line) for line in ("", " ", "\r", "\u2003\t")] == [[]] * 4
    assert models.encode(" a")


def test_a_byte_order_mark_is_no_text(model: Path, tmp_path: Path) -> None:
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbf" + write(tmp_path / "in", LINES).read_bytes())
    assert wmt("translate", model, "--input", tmp_path / "marked", "--output", tmp_path / "found") == 0
    assert (tmp_path / "found").read_text().split("\n")[:-1] == run(model, tmp_path)


def test_lines_before_one_that_is_too_long_are_translated_and_kept(model: Path, tmp_path: Path) -> None:
    lines = [LINES[0]] * 11
    text, out = write(tmp_path / "in", [*lines, "dog " * 40, "we do !"]), tmp_path / "out"
    command = ["translate", model, "--input", text, "--output", out, "--longest", "20", "--window", "4"]
    assert wmt(*command) == 1
    assert json.loads((tmp_path / ".out.part.json").read_text())["lines"] == 11
    write(text, [*lines, "dog", "we do !"])
    assert wmt(*command, "--resume") == 0
    assert out.read_text().split("\n")[:-1] == run(model, tmp_path, lines=[*lines, "dog", "we do !"])


def test_lines_before_one_that_is_no_text_are_translated(model: Path, tmp_path: Path) -> None:
    text = write(tmp_path / "in", LINES * 2)
    text.write_bytes(text.read_bytes() + b"\xff\n")
    assert wmt("translate", model, "--input", text, "--output", tmp_path / "out", "--window", "5") == 1
    assert json.loads((tmp_path / ".out.part.json").read_text())["lines"] == 2 * len(LINES)


def test_a_pipe_is_read_once(model: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    content = write(tmp_path / "in", LINES).read_bytes()
    with ThreadPoolExecutor(1) as writer:
        writer.submit((tmp_path / "pipe").write_bytes, content)
        assert wmt("translate", model, "--input", tmp_path / "pipe", "--output", tmp_path / "found") == 0
    assert (tmp_path / "found").read_text().split("\n")[:-1] == run(model, tmp_path)


def test_line_by_line_another_program_gets_its_answer_at_once(model: Path) -> None:
    command = [sys.executable, "-m", "pipeline.cli", "translate", str(model), "--beam", "1", "--window", "1"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        for line in LINES[:2]:
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            assert select.select([process.stdout], [], [], 200)[0], "no answer"
            assert process.stdout.readline().endswith(b"\n")
        process.stdin.close()
    assert process.returncode == 0


def test_nbest_as_text(model: Path, tmp_path: Path) -> None:
    found = run(model, tmp_path, "--nbest", "2", lines=["we do !", ""])
    assert [line.split(" ||| ")[0] for line in found] == ["1", "1", "2"]


def test_the_library_refuses_nothing_that_fits_and_splits_what_does_not(model: Path) -> None:
    whole = Translator(model)
    long = "the old man sees a dog. He did not see it. She sleeps well."
    parted = Translator(whole.models, longest=12)
    assert len(whole.pieces(long)) == 1
    assert len(parted.pieces(long)) == 3
    alone = list(parted.translate(["the old man sees a dog.", "He did not see it.", "She sleeps well."]))
    assert list(parted.translate([long])) == [" ".join(alone)]
    with pytest.raises(InputError, match=r"line 2: the line `the old .* at most 12"):
        list(Translator(whole.models, longest=12, split=False).translate(["we do", long]))
    with pytest.raises(InputError, match="line 1: the line"):
        list(parted.translate([long.replace(".", "")]))


@pytest.fixture
def parser(tmp_path: Path) -> Path:
    """A parser with random weights, which writes no more than a few symbols: its outputs have to be repaired."""
    return parser_of(tmp_path / "parser", "vinyals")


def words(tree: str) -> list[str]:
    """The words of a tree, or of none for an empty line."""
    return [word for each in read_trees([tree], "the output") for word in each.words()]


def repairs_of(said: str) -> tuple[int, int, dict[str, int]]:
    """How many trees were repaired, of how many, and the kinds, as `wmt parse` says it in its only line."""
    found = re.fullmatch(r"parse: ([\d,]+) of ([\d,]+) trees had to be repaired(?:: (.+))?\n", said)
    assert found, said
    kinds = (kind.rsplit(" ", 1) for kind in (found[3] or "").split(", ") if kind)
    return int(found[1]), int(found[2]), {name: int(count) for name, count in kinds}


def test_parsing_says_what_it_repaired_and_each_line_of_json_too(
    parser: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["parse", parser, "--input", write(tmp_path / "in", LINES), "--beam", "2"]
    assert wmt(*command, "--output", tmp_path / "out") == 0
    repaired, trees, kinds = repairs_of(capsys.readouterr().err)
    parsed = (tmp_path / "out").read_text().split("\n")[:-1]
    assert [words(line) for line in parsed] == [line.split() for line in LINES]
    assert trees == 4
    assert 0 < repaired <= trees
    assert set(kinds) <= set(REPAIRS)
    assert wmt(*command, "--json", "--nbest", "2") == 0
    shown = capsys.readouterr()
    objects = [json.loads(line) for line in shown.out.splitlines()]
    assert [len(one["translations"]) for one in objects] == [2, 0, 2, 2, 0, 2]
    assert [one["translations"][0]["text"] if one["translations"] else "" for one in objects] == parsed
    found = [each["repairs"] for one in objects for each in one["translations"]]
    total = sum(map(Counter, found), Counter[str]())
    assert repairs_of(shown.err) == (sum(map(bool, found)), 8, dict(total))
    first = sum((Counter(one["translations"][0]["repairs"]) for one in objects if one["translations"]), Counter[str]())
    assert first == kinds
    # Trees of three words, for sentences of 7, 3, 3 and 5.
    monkeypatch.setattr(codec.Symbols, "decode", lambda *_: "(S XX XX XX )S")
    monkeypatch.setattr(Translator, "_attention", lambda *_: None)
    assert wmt(*command) == 0
    assert capsys.readouterr().err == "parse: 2 of 4 trees had to be repaired: word missing 6\n"
    monkeypatch.undo()
    assert "repairs" not in json.loads(run(folder_of(tmp_path / "text"), tmp_path, "--json")[0])["translations"][0]


def test_words_are_aligned_by_the_attention_to_all_their_subwords(parser: Path) -> None:
    translator = Translator(parser)
    (piece,) = translator.pieces("unbelievably She sleeps well")
    ids = translator.models.target_subwords.encode("(S XX XX )S")
    attention = translator._attention(ids, piece)
    assert attention is not None
    found, whole = attention(), alignment(translator.models.members, piece.ids, ids)[:4]
    parts = len(translator.models.subwords.encode("unbelievably"))
    assert parts > 1
    assert found[:, 0] == pytest.approx(whole[:, :parts].sum(1).numpy())
    assert found[:, 1:] == pytest.approx(whole[:, parts:-1].numpy())
    assert Translator(folder_of(parser.parent / "text"))._attention([5], piece) is None
    # In a joint vocabulary a symbol may be several subwords.
    translator.models.target_subwords = translator.models.subwords
    assert translator._attention(ids, piece) is None


def test_parsing_a_stream_an_nbest_list_and_an_interrupted_file(
    parser: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [*LINES, *reversed(LINES)]
    text, out = write(tmp_path / "in", lines), tmp_path / "out"
    command = ["parse", parser, "--beam", "2", "--window", "3"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    assert wmt(*command) == 0
    expected = capsys.readouterr().out
    assert [words(line) for line in expected.split("\n")[:-1]] == [line.split() for line in lines]
    monkeypatch.undo()
    monkeypatch.setattr(streams, "format_output", _killed_at(8, streams.format_output))
    assert wmt(*command, "--input", text, "--output", out) == 9
    monkeypatch.undo()
    assert not out.exists()
    assert json.loads((tmp_path / ".out.part.json").read_text())["lines"] == 7
    assert capsys.readouterr().err == ""
    # The rest is the same by `wmt translate`, which parses with a parser. Only its trees are counted.
    assert wmt("translate", *command[1:], "--input", text, "--output", out, "--resume") == 0
    assert re.match(r"translate: \d of 3 trees had to be repaired", capsys.readouterr().err)
    assert out.read_text() == expected
    assert wmt(*command, "--input", text, "--nbest", "2") == 0
    listed = [line.split(" ||| ") for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [int(number) for number, *_ in listed[:6]] == [1, 1, 2, 3, 3, 4]
    assert all(words(tree) == lines[int(number) - 1].split() for number, tree, _ in listed)


def test_a_parser_has_attention(parser: Path, tmp_path: Path) -> None:
    command = ["attention", parser, "--source", "we do !", "--output"]
    assert wmt(*command, tmp_path / "given", "--target", "(S (NP (PRP we)) (VP (VBP do)) (. !))") == 0
    with np.load(tmp_path / "given/attention.npz") as arrays:
        assert arrays["target"].tolist() == ["<s>", *["(S", "(NP", "XX", ")NP", "(VP", "XX", ")VP", "XX", ")S"]]
        assert arrays["cross"].shape == (2, 2, 10, len(arrays["source"]))
        assert list(arrays["source"])[-1] == "</s>"
    # The symbols of the repaired tree, of which TOP is unknown to the model.
    assert wmt(*command, tmp_path / "own") == 0
    with np.load(tmp_path / "own/attention.npz") as arrays:
        assert arrays["target"].tolist().count("XX") == 3


def test_a_sentence_that_is_too_long_to_parse_is_refused_with_the_option_that_takes_it(
    parser: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "the old man sees a dog. He did not see it."
    length = len(Models([parser]).encode(long)) - 1
    command = ["parse", parser, "--input", write(tmp_path / "in", ["we do !", long]), "--longest", length - 1]
    assert wmt(*command) == 1
    sentence = (
        f"line 2: the line `the old man sees a dog. He did not see i...` has {length} subwords, and at most "
        f"{length - 1} are parsed at once: give --longest {length}\n"
    )
    assert capsys.readouterr().err == f"parse: {sentence}"
    assert wmt(*command[:-1], length) == 0
    assert wmt(*command, "--long", "split") == 1
    assert "--long is `split`, but a tree cannot be made of parts" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", Terminal(f"we do !\n{long}\nwe do !\n"))
    assert wmt("parse", parser, *command[-2:]) == 0
    shown = capsys.readouterr()
    assert shown.out.replace("> ", "").count("\n") == 3
    assert f"\nparse: {sentence}" in shown.err
    assert re.search(r"\nparse: \d of 2 trees had to be repaired", shown.err)


def test_a_sentence_beyond_learned_positions_cannot_be_parsed(tmp_path: Path) -> None:
    ready = Translator(parser_of(tmp_path / "learned", "vinyals", positions="learned", max_positions=24), longest=5)
    words = len(ready.models.encode("dog")) - 1
    with pytest.raises(InputError, match=r"at most 5 are parsed at once: give --longest \d+$"):
        ready.pieces("dog " * (13 // words))
    with pytest.raises(InputError, match=r"of at most 13 that the model has positions for: leave it out$"):
        ready.pieces("dog " * 14)


def test_learned_positions_bound_the_line(tmp_path: Path) -> None:
    ready = Translator(folder_of(tmp_path / "learned", positions="learned", max_positions=24))
    assert ready.longest == 13
    with pytest.raises(InputError, match="at most 13"):
        list(ready.translate(["dog " * 14]))
    sinusoids = folder_of(tmp_path / "sinusoids", seed=2)
    assert Translator([sinusoids, tmp_path / "learned"]).longest == 13, "the shortest table of an ensemble"
    settings = ready.settings.changed({"max_extra": 23})
    with pytest.raises(
        InputError, match="max_extra is 23, but the model has 24 positions: give --max-extra at most 22"
    ):
        Translator(tmp_path / "learned", settings=settings)


def test_sentences_are_split_where_they_end() -> None:
    line = 'Mr. Smith left at 3.5 p.m. today. "Why?" he asked. (No one knew.) It was 7. October e.g. a Monday! Ok'
    assert split_sentences(line, "en") == [
        "Mr. Smith left at 3.5 p.m. today.",
        '"Why?" he asked.',
        "(No one knew.)",
        "It was 7.",
        "October e.g. a Monday!",
        "Ok",
    ]
    assert split_sentences("no end", "xx") == ["no end"]
    # In linear time: this would take an hour if every character could begin a word.
    assert split_sentences(f"{'a' * 300_000} b. C", "en") == [f"{'a' * 300_000} b.", "C"]


def test_an_interrupted_output_is_gone_on_with(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = write(tmp_path / "in", [f"{LINES[0]} {LINES[2 + n % 2]}" for n in range(60)])
    command = [str(model), "--input", str(text), "--window", "8"]
    assert wmt("translate", *command, "--output", str(tmp_path / "expected")) == 0
    out, growing = tmp_path / "out", tmp_path / ".out.part"
    monkeypatch.setattr("nmt.deployment.resumable_output.SECONDS", 0.0)
    monkeypatch.setattr(streams, "format_output", _killed_at(25, streams.format_output))
    assert wmt("translate", *command, "--output", out) == 9
    monkeypatch.undo()
    assert not out.exists()
    growing.write_bytes(growing.read_bytes() + b"half a li")
    assert wmt("translate", *command, "--output", str(out), "--beam", "2", "--resume") == 1
    assert "begun from another text, model or options" in capsys.readouterr().err
    assert wmt("translate", *command, "--output", str(out), "--resume") == 0
    assert out.read_bytes() == (tmp_path / "expected").read_bytes()
    assert not growing.exists()


def _killed_at(line: int, write: Any) -> Any:
    def record(ready: Any, translation: Any, number: int, options: Any) -> Any:
        if number == line:
            raise SystemExit(9)
        return write(ready, translation, number, options)

    return record


OFTEN_RECORDED = """
from nmt.deployment import resumable_output
from pipeline.cli import main
resumable_output.SECONDS = 0.1
main()
"""


def test_a_kill_leaves_no_output_and_no_half_line(model: Path, tmp_path: Path) -> None:
    text = write(tmp_path / "in", [LINES[0]] * 20_000)
    files = ["--input", str(text), "--output", str(tmp_path / "out")]
    command = [sys.executable, "-c", OFTEN_RECORDED, "translate", str(model), *files, "--window", "16"]
    process = subprocess.Popen(command, cwd=ROOT)
    record = tmp_path / ".out.part.json"
    try:
        deadline = time.monotonic() + 200
        while not record.exists() and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.1)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "out").exists()
    progress = json.loads(record.read_text())
    counted = (tmp_path / ".out.part").read_bytes()[: progress["bytes"]]
    assert counted.endswith(b"\n")
    assert counted.count(b"\n") == progress["lines"] > 0


def test_standard_streams_until_the_reader_has_had_enough(model: Path, tmp_path: Path) -> None:
    text = write(tmp_path / "in", LINES * 4000)
    command = [sys.executable, "-u", "-m", "pipeline.cli", "translate", str(model), "--beam", "1", "--window", "8"]
    with (
        text.open("rb") as lines,
        subprocess.Popen(command, cwd=ROOT, stdin=lines, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
    ):
        assert process.stdout
        assert process.stderr
        first, second = process.stdout.readline(), process.stdout.readline()
        assert len(first) > 1
        assert second == b"\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_ctrl_c_at_the_prompt_ends_it_without_a_traceback(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(Terminal):
        def readline(self, size: int | None = -1, /) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Interrupted())
    assert wmt("translate", model) == 130
    assert capsys.readouterr().err.count("\n") == 1


def test_a_disk_that_is_full_is_one_sentence_with_the_file(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, out = write(tmp_path / "in", LINES * 40), tmp_path / "out"
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        assert wmt("translate", model, "--input", text, "--output", out) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert capsys.readouterr().err == f"translate: {out}: File too large\n"
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--pair", "en-fr"], "translates en-de, but en-fr was requested"),
        (["--pair", "en"], "write it as en-de"),
        (["--nbest", "9"], "raise --beam"),
        (["--beam", "0"], "the search's beam is 0, but should be greater than or equal to 1: change it"),
        (["--beam", "400"], "the search's beam is 400, but the vocabulary has"),
        (["--alpha", "11"], "the search's alpha is 11.0, but should be less than or equal to 10"),
        (["--stop", "soon"], "the search's stop is 'soon', but should be 'exact' or 'tensor2tensor'"),
        (["--resume"], "give --output too"),
        (["--sample", "--temperature", "0"], "--temperature is 0.0, but should be greater than 0: change it"),
        (["--sample", "--top-k", "-1"], "--top-k is -1, but should be greater than or equal to 0: change it"),
        (["--input", "absent"], "translate: absent: No such file or directory"),
        (["--engine", "ctranslate2"], "wmt export"),
        (["--engine", "ctranslate2", "--quantization", "int8"], "quantized by wmt export: leave out --quantization"),
        (["--precision", "bfloat16", "--quantization", "int8"], "give --device cpu and --precision float32"),
        (["--device", "nonsense"], "--device is `nonsense`, which torch cannot use here: give cpu, or cuda with a GPU"),
        (["--device", "cuda:99"], "--device is `cuda:99`, which torch cannot use here"),
        (["--device", "meta"], "--device is `meta`, which torch cannot use here"),
        (["--engine", "ctranslate2", "--precision", "bfloat16"], "no --precision and no --stop: leave them out"),
        (["--engine", "ctranslate2", "--stop", "exact"], "no --precision and no --stop: leave them out"),
        (["--max-extra", "1000000"], "the search's max_extra is 1000000, but should be less than or equal to 100000"),
    ],
)
def test_wrong_options_are_one_sentence(
    model: Path, options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "ctranslate2" in options:
        pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    assert wmt("translate", str(model), *options) == 1
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_settings_of_a_search_are_changed_by_name(model: Path) -> None:
    settings = SearchSettings(beam=4, alpha=0.6, max_extra=10, stop="exact")
    assert settings.changed({"beam": 2}) == SearchSettings(beam=2, alpha=0.6, max_extra=10, stop="exact")
    with pytest.raises(InputError, match="no setting `beams`: give one of beam, alpha, max_extra, stop"):
        settings.changed({"beams": 2})
    rows = Models([model]).subwords.used_rows
    assert Translator(model, settings=settings.changed({"beam": rows})).settings.beam == rows
    with pytest.raises(InputError, match=f"beam is {rows + 1}, but the vocabulary has {rows} subwords: give a beam"):
        Translator(model, settings=settings.changed({"beam": rows + 1}))


def _nan(folder: Path) -> None:
    weights = load_tensors(folder / "model.safetensors")
    weights["embedding.table"][3, 3] = float("nan")
    save_tensors(folder / "model.safetensors", weights)


def _other_size(folder: Path) -> None:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "vocabulary": 16}))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_nan, "not finite"),
        (_other_size, "put together of two models"),
        (lambda folder: (folder / "config.yaml").unlink(), "is no model folder"),
        (lambda folder: (folder / "config.yaml").write_bytes(b"\xff"), "config.yaml is not UTF-8"),
        (lambda folder: (folder / "config.yaml").write_text("a: [\n"), "config.yaml is not valid YAML"),
        (
            lambda folder: (folder / "config.yaml").write_text("source: en\n"),
            "of another version: target: Field required",
        ),
        (lambda folder: (folder / "model.safetensors").unlink(), "cannot be read as weights"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 99), "cannot be read as weights"),
        (lambda folder: shutil.rmtree(folder / "subwords"), "holds no usable subwords"),
        (lambda folder: (folder / "subwords/codes.bpe").write_bytes(b"\xff"), "holds no usable subwords"),
    ],
)
def test_a_damaged_folder_is_one_sentence(
    model: Path, damage: Any, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(model)
    assert wmt("translate", str(model)) == 1
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


@pytest.mark.timeout(60)
def test_weights_that_overflow_are_one_sentence(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = load_tensors(model / "model.safetensors")
    save_tensors(model / "model.safetensors", {name: weight * 1e30 for name, weight in weights.items()})
    text = str(write(tmp_path / "in", LINES[:1]))
    sentence = "for subword 1 of a translation the model gives no probabilities"
    for options in ([], ["--beam", "1"], ["--sample"], ["--ensemble", str(model)]):
        assert wmt("translate", str(model), "--input", text, *options) == 1
        assert sentence in capsys.readouterr().err
    assert wmt("score", str(model), text, text) == 1
    assert sentence in capsys.readouterr().err
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed: pip install ctranslate2")
    assert wmt("export", str(model), str(tmp_path / "exported")) == 0
    assert wmt("translate", str(tmp_path / "exported"), "--input", text, "--engine", "ctranslate2") == 1
    assert "scores a translation as nan" in capsys.readouterr().err


def test_an_ensemble_is_of_one_pair_and_vocabulary(model: Path, tmp_path: Path) -> None:
    other = folder_of(tmp_path / "second", seed=2)
    assert len(list(Translator([model, other]).translate(LINES))) == len(LINES)
    with pytest.raises(InputError, match="share a pair"):
        Models([model, folder_of(tmp_path / "french", target="fr")])
    with pytest.raises(InputError, match="share tokenizer and subwords"):
        Models([model, folder_of(tmp_path / "strange", words=WORDS.upper())])


def test_scoring_texts(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [line for line in LINES if line.strip()]
    ready = Translator(model)
    found = list(ready.translations(sources))
    text = write(tmp_path / "target", [translation.texts[0] for translation in found])
    assert wmt("score", str(model), str(write(tmp_path / "source", sources)), str(text), "--json") == 0
    *lines, total = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    equal = 0
    for one, translation in zip(lines, found, strict=True):
        best = translation.hypotheses[0]
        if ready.models.encode_target(translation.texts[0])[:-1] == best.ids:
            equal += 1
            assert one["log_probability"] == pytest.approx(best.log_probability, abs=1e-3)
    assert equal
    assert total["lines"] == len(sources)
    assert total["log_probability"] == pytest.approx(sum(one["log_probability"] for one in lines))
    assert wmt("score", str(model), str(tmp_path / "source"), str(write(tmp_path / "short", ["a"]))) == 1
    assert "has 4 lines and" in capsys.readouterr().err
    assert wmt("score", str(model), str(write(tmp_path / "source", ["we do", " "])), str(tmp_path / "source")) == 1
    output = capsys.readouterr()
    assert output.out.count("\n") == 1, "the line before"
    assert "line 2: the source has no text" in output.err
    assert Scored(-1e6, 1).perplexity == math.exp(700)


def test_attention_of_every_layer_head_and_kind(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "attention"
    command = ["attention", str(model), "--source", "we do $ !", "--output", str(out)]
    assert wmt(*command, "--target", "She sleeps") == 0
    with np.load(out / "attention.npz") as arrays:
        source, target = len(arrays["source"]), len(arrays["target"])
        assert arrays["encoder"].shape == (2, 2, source, source)
        assert arrays["decoder"].shape == (2, 2, target, target)
        assert arrays["cross"].shape == (2, 2, target, source)
        for name in attention_maps.ATTENTIONS:
            assert np.allclose(arrays[name].sum(-1), 1.0, atol=1e-5)
        assert not np.triu(arrays["decoder"][0, 0], 1).any()
    pictures = sorted(out.glob("*.svg"))
    assert len(pictures) == 6
    assert all(picture.read_text(encoding="utf-8").rstrip().endswith("</svg>") for picture in pictures)
    assert wmt(*command) == 2
    assert "exists: give a new folder" in " ".join(capsys.readouterr().err.replace("│", "").split())
    shutil.rmtree(out)
    assert wmt(*command) == 0
    with np.load(out / "attention.npz") as arrays:
        assert arrays["target"][0] == "<s>"
        assert list(arrays["source"])[-1] == "</s>"


@torch.no_grad()
def test_attention_is_what_the_layers_use(model: Path) -> None:
    built = Models([model]).members[0]
    source, target = [5, 6, 7, 2], [8, 9]
    weights = attention_maps.attention_of(built, source, target)["encoder"][0]
    x = built.embedding(torch.tensor([source]))
    module = built.encoder[0].self_attention
    assert not isinstance(module, torch.Tensor)
    V = module.W_V(x).unflatten(2, (2, 8)).transpose(1, 2)[0]
    expected = module(x, x, torch.ones(1, 1, 1, 4, dtype=torch.bool))
    assert torch.allclose(module.W_O((weights @ V).transpose(0, 1).flatten(1)), expected[0], atol=1e-5)


@pytest.mark.parametrize(
    "change", [{}, {"positions": "learned"}, {"projection_biases": False}, {"position_layout": "halves"}]
)
def test_ctranslate2_translates_alike(
    tmp_path: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed: pip install ctranslate2")
    folder = folder_of(tmp_path / "model", **change)
    out = tmp_path / "exported"
    assert wmt("export", str(folder), str(out)) == 0
    # Greedy: of random weights the two searches' rules for ending show.
    options = ["--alpha", "0", "--beam", "1"]
    ours = run(folder, tmp_path, *options)
    assert run(out, tmp_path, *options, "--engine", "ctranslate2") == ours
    assert "not GNMT's" in capsys.readouterr().err
    assert wmt("export", str(folder), str(tmp_path / "small"), "--quantization", "int8") == 0
    assert (tmp_path / "small/model.bin").stat().st_size < (out / "model.bin").stat().st_size
    assert len(run(tmp_path / "small", tmp_path, "--engine", "ctranslate2")) == len(LINES)
    models = Models([out], weights=False)
    engine = ctranslate2_engine.CTranslate2Engine(out, models)
    positions = 64 if change.get("positions") == "learned" else ctranslate2_engine.POSITIONS
    assert Translator(models, engine=engine, longest=100_000).longest == positions - 10 - 1
    (parted,) = Translator(models, engine=engine, longest=12).translations(["we do . She sleeps well . " * 3])
    (best,) = parted.hypotheses
    assert len(parted.pieces) == 4
    assert best.score == pytest.approx(best.log_probability / (len(best.ids) + 4) ** 0.6), "as for a line in one piece"
    assert wmt("translate", str(out)) == 1
    assert "--engine ctranslate2" in capsys.readouterr().err


@pytest.mark.parametrize(("change", "sentence"), [({"d_k": 4}, "d_k 4 and d_v 8"), ({"h": 1}, "h x d_k = 8")])
def test_what_ctranslate2_cannot_represent_is_refused(change: dict[str, Any], sentence: str, model: Path) -> None:
    settings = Models([model]).description.model.model_copy(update=change)
    with pytest.raises(InputError, match=sentence):
        export.check_representable(settings)
