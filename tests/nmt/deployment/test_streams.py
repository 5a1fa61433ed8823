"""The commands translate, parse and score on a model folder."""

import io
import json
import math
import os
import re
import select
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from clones import ROOT
from command_line import printed, refused, warned, wmt
from data_stages import full_disk
from model_folders import TREES, folder_of
from text_lines import LINES, write_lines

from nmt.codec import Codec
from nmt.common.tensors import load_tensors, save_tensors
from nmt.deployment import streams
from nmt.evaluation.forced_scoring import Scored
from nmt.inference import alignment
from nmt.inference.translator import Translator
from nmt.parsing.tokenizers import Symbols
from nmt.parsing.trees import read_trees


def run(model: Path, tmp_path: Path, *options: str, lines: list[str] | None = None) -> list[str]:
    text = write_lines(tmp_path / "in", LINES if lines is None else lines)
    out = tmp_path / "out"
    assert wmt("translate", str(model), "--input", str(text), "--output", str(out), *options) == 0
    return out.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def test_a_line_in_a_line_out_and_empty_lines_stay(model: Path, tmp_path: Path) -> None:
    translated = run(model, tmp_path)
    assert [not text for text in translated] == [not line.strip() for line in LINES]
    # Neither windows nor batches change order or text.
    assert run(model, tmp_path, "--window", "2", "--batch-tokens", "20") == translated
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "model", "model.subwords", "out"]
    content = (tmp_path / "in").read_bytes()
    (tmp_path / "unended").write_bytes(content.removesuffix(b"\n"))
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbf" + content)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("unended", "marked", "pipe"):
        with ThreadPoolExecutor(1) as writer:
            if name == "pipe":
                writer.submit((tmp_path / "pipe").write_bytes, content)
            assert wmt("translate", model, "--input", tmp_path / name, "--output", tmp_path / "link") == 0
        assert (tmp_path / "elsewhere").read_bytes() == (tmp_path / "out").read_bytes()
    assert (tmp_path / "link").is_symlink()


def test_at_a_terminal_it_answers_line_by_line_until_ctrl_d_or_ctrl_c(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers, errors = [], ""

    def typed(*_: object) -> Iterator[str]:
        nonlocal errors
        for line in ("we do !", "", "She sleeps"):
            yield line
            shown = capsys.readouterr()
            answers.append(shown.out.count("\n"))
            errors += shown.err
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Mock(wraps=sys.stdin, isatty=lambda: True))
    monkeypatch.setattr(streams, "read_stream", typed)
    assert wmt("translate", model) == 130
    assert answers == [1, 1, 1], "before the next line"
    assert "Ctrl-D" in errors
    assert (errors + capsys.readouterr().err).count("\n") == 1, "no traceback"


def test_beside_a_progress_bar_all_lines_go_where_standard_output_goes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert wmt("translate", model, "--input", write_lines(tmp_path / "in", ["a line"] * 9), "--window", "2") == 0
    assert capsys.readouterr().out.count("\n") == 9


def test_json_and_nbest_lists(model: Path, tmp_path: Path) -> None:
    lines = run(model, tmp_path, "--json", "--nbest", "3")
    assert run(model, tmp_path, "--json", "--nbest", "3", "--quantization", "int8") != lines
    first, empty, *_ = map(json.loads, lines)
    assert first["source"] == LINES[0]
    scores = [found["score"] for found in first["translations"]]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert "repairs" not in first["translations"][0]
    attended = np.array(first["attention"])
    assert attended.shape == (len(first["translations"][0]["subwords"]) + 1, len(first["source_subwords"]))
    assert np.allclose(attended.sum(1), 1.0, atol=2e-3)
    assert empty["translations"] == []
    (copied,) = map(json.loads, run(model, tmp_path, "--json", lines=[" ..\u2028 ."]))
    assert copied["translations"] == [{"text": ".. .", "score": 0.0, "log_probability": 0.0, "subwords": []}]
    found = run(model, tmp_path, "--nbest", "2", lines=["we do !", "", " ..."])
    assert [line.split(" ||| ")[0] for line in found] == ["1", "1", "2", "3"]
    assert found[2:] == ["2 |||  ||| 0.000000", "3 ||| ... ||| 0.000000"]


def test_a_line_without_words_is_copied_and_one_without_text_is_empty(model: Path, tmp_path: Path) -> None:
    translated = run(model, tmp_path, lines=["-", " ... ", "___", "\u200b", "\xad\x7f", "\u201e!?\u201c"])
    assert translated == ["-", "...", "___", "", "", "\u201e!?\u201c"]


def test_text_that_is_not_composed_is_told_once(model: Path, tmp_path: Path) -> None:
    text = write_lines(tmp_path / "text", ["10 \u2126", "we do", "gru\u0308n", "u\u0308"])
    told = f"warning: {text}, line 3: not composed (Unicode's NFC): words are torn\n"
    assert warned("translate", model, "--input", text) == told
    assert warned("bleu", text, text, "--lang", "de") == told * 2


def test_lines_before_an_error_are_translated(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And no file appears."""
    good = [LINES[0]] * 11
    expected = run(model, tmp_path, lines=good)
    text = write_lines(tmp_path / "in", good)
    text.write_bytes(text.read_bytes() + b"\xff\nwe do !\n")
    command = ["translate", model, "--input", text, "--longest", "20", "--window", "4"]
    assert "line 12: the byte 0xff" in refused(*command)
    assert capsys.readouterr().out.split("\n")[:-1] == expected
    assert wmt(*command, "--output", tmp_path / "new/out") == 1
    assert not (tmp_path / "new").exists()


def test_a_line_that_is_too_long_is_left_empty_and_the_others_are_kept(model: Path, tmp_path: Path) -> None:
    text, out = write_lines(tmp_path / "in", [LINES[0], "dog " * 40, LINES[0]]), tmp_path / "out"
    said = refused("translate", model, "--input", text, "--longest", "20", "--output", out)
    assert said.startswith("translate: lines left empty: 1; the first: line 2: the line `dog dog")
    before, empty, after, end = out.read_text(encoding="utf-8").split("\n")
    assert (before, empty, end) == (after, "", "")
    assert before


def test_several_sentences_of_a_line_are_told(model: Path, tmp_path: Path) -> None:
    sentences = ["She sees a dog.", "The old man sees it."]
    alone = run(model, tmp_path, lines=sentences)
    command = ("translate", model, "--input", write_lines(tmp_path / "in", [" ".join(sentences), *sentences]))
    assert warned(*command, "--split", "sentences", "--output", tmp_path / "out") == ""
    assert (tmp_path / "out").read_text().splitlines() == [" ".join(alone), *alone]
    assert warned(*command).startswith("translate: 1 line has several sentences, of which a model may")


def test_words_without_training_text_are_named_once_at_the_end(model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "known")

    def told(*lines: str, models: tuple[Path, ...] = (folder,)) -> str:
        return warned("translate", *models, "--json", "--input", write_lines(tmp_path / "in", [*lines]))

    assert told("a cat") == "", "which words are known is not known"
    (folder / "subwords" / "words.txt").write_text("dog\nShe\nsees\na\n")
    assert told('She sees a "dog".', "...", "", "dog") == ""
    lines = ["She sees a (cat) cat, cat-dog", " ".join(f"w{n}" for n in range(9)), "x\u202ey"]
    said = "translate: 13 different words are not in the training text, so the model guesses them: cat, cat-dog, "
    assert told(*lines) == f"{said}w0, w1, w2, w3, w4, w5, ...\n"
    assert told(lines[2]).endswith("guesses them: x, y\n")
    assert told("a cat", "cat") == "translate: 1 word is not in the training text, so the model guesses it: cat\n"
    long = ("--longest", "20", "--input", write_lines(tmp_path / "in", ["cat " * 40]))
    assert refused("translate", folder, *long).startswith("translate: lines left empty: 1; ")
    assert told(*lines, models=(folder, model)) == "", "the other model of an ensemble may know them"


def test_an_output_that_cannot_be_written_is_refused_before_the_model_is_opened(tmp_path: Path) -> None:
    text = write_lines(tmp_path / "in", LINES)
    (tmp_path / "link").symlink_to(text)
    (tmp_path / "folder").mkdir()
    for output, sentence in (
        (text, "is an input too, which it would replace"),
        (tmp_path / "link", "is an input too"),
        (tmp_path / "no-model/config.yaml", "no-model, an input, which it would change"),
        (tmp_path / "folder", "is no regular file"),
        (text / "out", "is no folder that you may write in"),
    ):
        assert sentence in refused("translate", tmp_path / "no-model", "--input", text, "--output", output)
    terminal = os.dup(0)
    with text.open("rb") as file:
        os.dup2(file.fileno(), 0)
    try:
        # As `< in` makes it an input.
        assert "is an input too" in refused("translate", tmp_path / "no-model", "--output", text)
    finally:
        os.dup2(terminal, 0)
        os.close(terminal)
    assert text.read_text().split("\n")[:-1] == LINES


TRANSLATE = """
import atexit, runpy, sys
atexit.register(lambda: "torch._dynamo" in sys.modules and sys.stderr.write("torch's compiler was imported"))
sys.argv = ["wmt", "translate", *sys.argv[1:]]
runpy.run_module("pipeline.cli", run_name="__main__", alter_sys=True)
"""
"""It says so at its end if it imported the compiler, which takes more than a second."""


def test_another_program_gets_each_answer_at_once_and_may_stop_reading(model: Path) -> None:
    command = [sys.executable, "-c", TRANSLATE, str(model), "--beam", "1", "--window", "1"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        for line in LINES[:2]:
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            assert select.select([process.stdout], [], [], 200)[0], "no answer"
            assert process.stdout.readline().endswith(b"\n")
        # The reader has had enough.
        process.stdout.close()
        with suppress(BrokenPipeError):
            process.stdin.write("".join(f"{line}\n" for line in LINES * 400).encode())
            process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def words(tree: str) -> list[str]:
    """The words of a tree, or of none for an empty line."""
    return [word for parsed in read_trees([tree], "the output") for word in parsed.words()]


def test_parsing_says_what_it_repaired_and_each_line_of_json_too(
    parser: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["parse", parser, "--input", write_lines(tmp_path / "in", LINES), "--beam", "2"]
    warned(*command, "--output", tmp_path / "out")
    parsed = (tmp_path / "out").read_text().split("\n")[:-1]
    assert [words(line) for line in parsed] == [line.split() for line in LINES]
    asked: list[Any] = []
    compute = alignment.attention_of
    monkeypatch.setattr(alignment, "attention_of", lambda *given: (asked.append(given[1:]), compute(*given))[1])
    assert wmt(*command, "--json", "--nbest", "2") == 0
    shown = capsys.readouterr()
    assert len(asked) == len(set(asked)) > 4, "the attention of a malformed tree is computed once"
    objects = [json.loads(line) for line in shown.out.splitlines()]
    assert [len(one["translations"]) for one in objects] == [2, 0, 2, 2, 0, 2]
    assert [one["translations"][0]["text"] if one["translations"] else "" for one in objects] == parsed
    repairs = [translation["repairs"] for one in objects for translation in one["translations"]]
    total = sum(map(Counter, repairs), Counter[str]())
    said, kinds = shown.err.rstrip("\n").split(" trees had to be repaired: ")
    assert said == f"parse: {sum(map(bool, repairs))} of 8"
    assert {name: int(count) for name, count in (kind.rsplit(" ", 1) for kind in kinds.split(", "))} == total
    # Standard input, and an n-best list; a parser parses by `wmt translate` too.
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((tmp_path / "in").read_bytes())))
    assert wmt("translate", parser, "--beam", "2", "--window", "3", "--nbest", "2") == 0
    shown = capsys.readouterr()
    assert shown.err.replace("translate", "parse") == f"{said} trees had to be repaired: {kinds}\n"
    listed = [line.split(" ||| ") for line in shown.out.split("\n")[:-1]]
    assert [int(number) for number, *_ in listed[:6]] == [1, 1, 2, 3, 3, 4]
    assert all(words(tree) == LINES[int(number) - 1].split() for number, tree, _ in listed)
    # Trees of three words, for sentences of 7, 3, 3 and 5.
    monkeypatch.setattr(Symbols, "decode", lambda *_: "(S XX XX XX )S")
    monkeypatch.setattr(Codec, "word_attention", lambda *_: None)
    assert warned(*command) == "parse: 2 of 4 trees had to be repaired: word missing 6\n"


def test_a_full_disk_is_one_sentence(model: Path, tmp_path: Path) -> None:
    text, out = write_lines(tmp_path / "in", LINES * 40), tmp_path / "out"
    with full_disk(1000):
        sentence = refused("translate", model, "--input", text, "--output", out)
    assert sentence.startswith(f"translate: File too large: {out}; make room")
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--nbest", "9"], "raise --beam"),
        (["--input", "absent"], "translate: absent: No such file or directory"),
        (["--precision", "bfloat16", "--quantization", "int8"], "give --device cpu and --precision float32"),
    ],
)
def test_wrong_options_are_one_sentence(model: Path, options: list[str], sentence: str) -> None:
    assert sentence in refused("translate", model, *options)


def nan(path: Path) -> None:
    weights = load_tensors(path)
    weights["embedding.table"][3, 3] = float("nan")
    save_tensors(path, weights)


def changed(pattern: str, replacement: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(re.sub(f"(?m)^{pattern}", replacement, path.read_text(), count=1))


@pytest.mark.parametrize(
    ("file", "damage", "sentence"),
    [
        ("model.safetensors", nan, "not finite"),
        ("config.yaml", changed("vocabulary: .*", "vocabulary: 16"), "two models"),
        ("config.yaml", changed("  d_ff: .*", "  d_ff: 48"), "config.yaml are of different models: "),
        ("config.yaml", changed(r"[\s\S]*", "a: ["), "config.yaml is not valid YAML"),
        ("config.yaml", changed(r"[\s\S]*", ""), "of another version: `source` is missing"),
        ("config.yaml", Path.unlink, "is no model folder"),
        ("subwords", shutil.rmtree, "holds no usable subwords"),
    ],
)
def test_a_damaged_folder_is_told(model: Path, file: str, damage: Callable[[Path], object], sentence: str) -> None:
    damage(model / file)
    assert sentence in refused("translate", model)


@pytest.mark.timeout(60)
def test_weights_that_overflow_are_one_sentence(model: Path, tmp_path: Path) -> None:
    weights = load_tensors(model / "model.safetensors")
    save_tensors(model / "model.safetensors", {name: weight * 1e30 for name, weight in weights.items()})
    text = write_lines(tmp_path / "in", LINES[:1])
    assert "for subword 1 of a translation the model gives no probabilities" in refused("score", model, text, text)


def test_scoring_trees_names_the_line_of_a_broken_one(parser: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "source", ["we do"] * 3)
    broken = "the target, line 3: the tree that begins on line 3"
    for second, said in ((TREES[1], broken), (TREES[1] * 2, "line 2 of the target holds 2 trees")):
        trees = write_lines(tmp_path / "trees", [TREES[1], second, "(S (NP"])
        assert said in refused("score", parser, source, trees)
    bare, raw = "(S (NP (PRP we)) (VP (VBP do)))", "( (S (NP-SBJ (PRP we)) (VP (VBP do) (-NONE- *))))"
    lines = printed("score", parser, source, write_lines(trees, [raw, bare, bare]), "--json").splitlines()
    assert len({json.loads(line)["log_probability"] for line in lines[:3]}) == 1


def test_scoring_texts(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [line for line in LINES if line.strip()]
    ready = Translator(model)
    found = list(ready.translations(sources))
    text = write_lines(tmp_path / "target", [translation.texts[0] for translation in found])
    output = printed("score", model, write_lines(tmp_path / "source", sources), text, "--json")
    *lines, total = map(json.loads, output.splitlines())
    equal = 0
    for one, translation in zip(lines, found, strict=True):
        best = translation.hypotheses[0]
        if ready.model.encode_target(translation.texts[0])[:-1] == best.ids:
            equal += 1
            assert one["log_probability"] == pytest.approx(best.log_probability, abs=1e-3)
    assert equal
    assert total["lines"] == len(sources)
    assert total["log_probability"] == pytest.approx(sum(one["log_probability"] for one in lines))
    assert "has 4 lines and" in refused("score", model, tmp_path / "source", write_lines(tmp_path / "short", ["a"]))
    blank = write_lines(tmp_path / "blank", ["we do", "", " "])
    first, *empty, total = map(json.loads, printed("score", model, blank, blank, "--json").splitlines())
    assert empty == [{"log_probability": 0.0, "tokens": 0, "perplexity": 1.0}] * 2
    assert total["log_probability"] == first["log_probability"]
    words = write_lines(tmp_path / "words", ["we do", "we do", "a"])
    assert "line 2: the source has no text" in refused("score", model, blank, words)
    assert capsys.readouterr().out.count("\n") == 1, "the line before"
    learned = folder_of(tmp_path / "learned", positions="learned", max_positions=24)
    for folder, longest in ((learned, 24), (model, 8192)):
        words = write_lines(tmp_path / "words", ["we do", "dog " * longest])
        told = f"line 2: a side has {longest + 1:,} subwords, and at most {longest:,} are scored"
        assert told in refused("score", folder, words, words)
        assert capsys.readouterr().out.count("\n") == 1, "the line before"
    assert Scored(-1e6, 1).perplexity == math.exp(700)
