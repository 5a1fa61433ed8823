"""`wmt verify`: an honest run passes, every tampering is found and named, wrong input is refused in one sentence."""

import contextlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import yaml
from command_line import refused, wmt
from tiny_run import ROOT, after_training, commit, copied, run_stages, training
from trainings import stop_after, train_here

from nmt.common import tensors
from nmt.common.files import sha256_of, write_json
from nmt.common.processes import Interrupted
from nmt.common.tensors import WEIGHTS
from nmt.training import chain, checkpoint, trainer
from pipeline.config import paths, rows
from pipeline.config.paths import read_json
from pipeline.stages import certify, resolve
from pipeline.trainings import launch
from pipeline.verify import certificate, check
from pipeline.verify.certificate import Finding
from pipeline.verify.replay import Training

DATA = ["download", "tokenize", "learn_subwords", "binarize"]
STEPS = ["certificate", "code", "resolve", *DATA, "chain", "train", "states", "intervals", "average", "decode", "score"]
BY_HASH = {"code", "train", "states"}
MEASURED = ("updates", "params", "vocabulary", "precision", "valid_loss", "valid_ppl")
TRANSLATED = paths.TRANSLATIONS / "tinytest.average.de"
Found = dict[str, tuple[str, str]]
Tamper = Callable[[], object]
Change = Callable[[dict[str, Any]], object]
CHECKPOINT = checkpoint.checkpoint_path(paths.CHECKPOINTS, 20)
STRANGE = paths.CHECKPOINTS / "mine.safetensors"
PUBLISHED = sorted((ROOT / "data/certificates").glob("*.json"))


@pytest.fixture
def run(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an honest run, to work in and to change; training again happens in this process."""
    folder = copied(tmp_path_factory, tmp_path / "run")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(launch, "torchrun", train_here)
    return folder


def verify(*options: object) -> tuple[int, Found, str]:
    """`wmt verify`: its exit status, the status and detail of every step, and the last line."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = wmt("verify", *options)
    lines = [line for line in output.getvalue().splitlines() if not line.startswith("resuming after")]
    matches = [re.fullmatch(r"(.{14}) (.{12}) (.*)", line) for line in lines[:-1]]
    return status, {match[1].strip(): (match[2].strip(), match[3]) for match in matches if match}, lines[-1]


def verified(*options: object) -> Found:
    """The findings of a check in which nothing differs or is inconclusive."""
    status, findings, last = verify(*options)
    assert (status, last) == (0, "verified"), findings
    return findings


def those(findings: Found, status: str) -> list[str]:
    return [step for step, (how, _) in findings.items() if how == status]


def recorded() -> Training:
    return Training(certificate.load(paths.CERTIFICATE).training)


def intervals(*named: str, share: float = 0.01) -> Finding:
    """What is found where these updates are trained again, or random ones."""
    again = recorded()
    return again.retrained(paths.BINNED, [again.named(text) for text in named], share)


def test_an_honest_run_passes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rows.row("sample").settings["training"], "precision", "another machine's")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and ".git" not in path.parts}
    findings = verified("--share", 1)
    expected = [(step, "equal" if step in BY_HASH else "recomputed") for step in STEPS]
    assert [(step, how) for step, (how, _) in findings.items()] == expected
    assert findings["intervals"][1] == "24 of 24 updates trained again (100.0%: 0 to 8, 8 to 16, 16 to 24)"
    assert {path: path.read_bytes() for path in before} == before
    assert not list(Path("work").glob(".*"))


def test_certificates_of_equal_runs_are_equal(run: Path) -> None:
    before = paths.CERTIFICATE.read_bytes()
    run_stages("average", "certify")
    assert paths.CERTIFICATE.read_bytes() == before
    made = {str(path) for folder in ("data", "models", "results") for path in Path(folder).rglob("*") if path.is_file()}
    others = {str(paths.CONFIG), str(paths.CERTIFICATE), "data/tiny.tar", "data/catalog/tiny.yaml"}
    assert set(json.loads(before)["files"]) == made - others


def override(section: str, **changes: Any) -> None:
    content = yaml.safe_load(paths.PARAMS.read_text())
    content["overrides"][section] |= changes
    paths.PARAMS.write_text(yaml.safe_dump(content))
    run_stages("resolve")


def test_a_training_that_was_changed_on_its_way_passes(run: Path) -> None:
    """Its validations came after other updates from a stop on, which has a link of its own; then it was extended."""
    shutil.rmtree("work")
    for every, updates, stop in ((3, 14, 9), (5, 14, None), (5, 18, None)):
        override("training", validate_every=every, updates=updates, verify_every=2 if updates == 14 else 3)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted) if stop else contextlib.nullcontext():
            if stop:
                stop_after(patch, stop)
            training()
    after_training()
    links = json.loads(paths.CHAIN.read_text())["links"]
    assert [(link["update"], link["validate_every"]) for link in links[3:6]] == [(8, 3), (9, 3), (10, 5)]
    assert verified("--share", 1)["intervals"][1].startswith("18 of 18 updates")


def test_a_training_that_ended_by_patience_passes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree("work")
    # No better, and then worse.
    monkeypatch.setattr(trainer.Trainer, "validate", lambda self, _: float(max(12, self.update)))
    override("training", patience=2)
    training()
    after_training()
    assert json.loads(paths.CHAIN.read_text())["links"][-1]["update"] == 18
    loaded = certificate.load(paths.CERTIFICATE)
    assert (check.chained(loaded, run).status, [*check.contradictions(loaded)]) == ("recomputed", [])
    leave_certificate_alone("work")
    verified("--certificate", "theirs.json", "--share", 1)


def test_which_updates_are_trained_again(run: Path) -> None:
    assert len({tuple(recorded().choose(0.01)) for _ in range(40)}) > 1, "nobody knows before which"
    for share, least in ((0.01, 1), (0.2, 5), (0.5, 12), (1.0, 24)):
        updates = sum(end - start for start, end in recorded().choose(share))
        assert least <= updates <= least + 2
    (state(8).parent / "update-x").touch()
    assert recorded().states().status == "equal"
    assert [recorded().named(text) for text in ("9:11", "1:2", "8:9")] == [(8, 12), (0, 2), (8, 10)]
    assert intervals("9:11", "1:2").detail == "6 of 24 updates trained again (25.0%: 8 to 12, 0 to 2)"
    free_states()
    assert recorded().choose(1) == [(0, 24)]


def replaced(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change a file of tensors and leave others that share its bytes by hard links."""
    weights = tensors.load_tensors(path)
    change(weights)
    path.unlink()
    tensors.save_tensors(path, weights)


def one_bit(weights: dict[str, torch.Tensor]) -> None:
    values = weights[min(weights)].view(-1)
    values[2] = torch.nextafter(values[2], torch.tensor(9.0))


def edit(path: Path, change: Callable[[str], str]) -> None:
    """Change a file and leave others that share its bytes by hard links."""
    text = path.read_text()
    changed = change(text)
    assert changed != text, path
    path.unlink()
    path.write_text(changed)


def swap_lines(path: Path) -> None:
    edit(path, lambda text: "\n".join([*text.split("\n")[1::-1], *text.split("\n")[2:]]))


def edit_json(path: Path, **changes: Any) -> None:
    edit(path, lambda text: json.dumps({**json.loads(text), **changes}))


def edit_loss() -> None:
    edit(paths.CURVES, lambda text: re.sub(r"\n5,[\d.]+", "\n5,0.5", text))


def state(update: int) -> Path:
    (path,) = Path("work/train").glob(f"*/*/update-{update:08d}")
    return path


def free_states() -> None:
    for path in sorted(Path("work/train").glob("*/resume/update-*"))[:-1]:
        shutil.rmtree(path)


def resealed(change: Change) -> None:
    """Change the certificate, and its hash with it."""
    content = json.loads(paths.CERTIFICATE.read_text())
    del content["seal"]
    change(content)
    paths.CERTIFICATE.write_text(json.dumps({**content, "seal": certify.seal(content)}))


def forge(change: Change) -> None:
    """Change links of the chain, and all hashes that follow from them, in the chain's file and in the certificate."""
    content = json.loads(paths.CHAIN.read_text())
    links: list[chain.Link | None] = [None]
    for link in content["links"]:
        change(link)
        hashed = chain.link_hash(links[-1], *(link[key] for key in ("update", "weights", "moments", "losses")))
        links.append(chain.Link.model_validate({**link, "link": hashed}))
    content["links"] = [link.model_dump() for link in links if link is not None]
    paths.CHAIN.unlink()
    paths.CHAIN.write_text(json.dumps(content))
    run_stages("certify")


AFTER_THE_RUN: dict[str, list[Tamper]] = {
    "certificate": [lambda: edit(paths.CERTIFICATE, lambda text: text.replace('"beam": 2', '"beam": 3', 1))],
    "resolve": [lambda: edit(paths.CONFIG, lambda text: text.replace("eps_ls: 0.1", "eps_ls: 0.2", 1))],
    "download": [lambda: swap_lines(paths.RAW / "train.tinytrain.en")],
    "tokenize": [lambda: (paths.TOKENIZED / "more").write_text("A file that no stage made.")],
    "learn_subwords": [(paths.SUBWORDS / "vocabulary.txt").unlink],
    "binarize": [lambda: edit_json(paths.BINNED_STATS, pairs=61)],
    "train": [
        lambda: replaced(paths.CHECKPOINTS / "last.safetensors", one_bit),
        lambda: edit_json(paths.TRAINING, train_seconds=1.0),
        lambda: edit(paths.CURVES, lambda text: text.replace("\n3,", "\n3,1", 1)),
    ],
    "states": [
        lambda: (state(8) / "state.json").write_text("{"),
        lambda: replaced(state(16) / WEIGHTS, one_bit),
        lambda: replaced(state(24) / "optimizer.safetensors", one_bit),
    ],
    "average": [
        lambda: (paths.AVERAGE / WEIGHTS).write_bytes((paths.AVERAGE / WEIGHTS).read_bytes()[:-9]),
        lambda: edit(paths.AVERAGE / "config.yaml", lambda text: text.replace("alpha: 0.6", "alpha: 0.7")),
        lambda: replaced(paths.LAST / WEIGHTS, one_bit),
    ],
    "decode": [lambda: edit(TRANSLATED, lambda text: f"{text}dog")],
    "score": [lambda: paths.SCORES.write_text("{"), lambda: edit_json(paths.METRICS, bleu=99.0)],
}


def test_a_change_in_each_step_is_named_beside_the_others(run: Path) -> None:
    for tamper in (change for tampers in AFTER_THE_RUN.values() for change in tampers):
        tamper()
    status, findings, last = verify()
    changed = [step for step in STEPS if step in AFTER_THE_RUN]
    assert (status, list(findings), last) == (1, STEPS, f"not verified, these differ: {', '.join(changed)}")
    assert those(findings, "differs") == changed
    assert findings["resolve"][1].startswith("training.eps_ls is 0.2, in the certificate 0.1")
    assert re.match(r"models/checkpoints/last.safetensors is \w{40}, in the certificate \w{40}", findings["train"][1])
    assert findings["tokenize"][1].startswith("data/tokenized/more is ")
    assert re.findall(r"update-0+(\d+) is not the state", findings["states"][1]) == ["8", "16", "24"]
    for step in ("train", "average", "score"):
        assert f"; and {len(AFTER_THE_RUN[step]) - 1} more" in findings[step][1], "each of its files"


def rename_test_set() -> None:
    edit(paths.CONFIG, lambda text: text.replace("tinytest", "newstest2014"))
    for path in paths.RAW.glob("test.*"):
        path.rename(str(path).replace("tinytest", "newstest2014"))


def as_big() -> None:
    for path in (paths.CONFIG, paths.PARAMS):
        edit(path, lambda text: text.replace("row: sample", "row: big"))


def average_others() -> None:
    """The checkpoints are whole again after the average was made."""
    kept = paths.CHECKPOINTS.with_name("kept")
    shutil.copytree(paths.CHECKPOINTS, kept)
    CHECKPOINT.unlink()
    run_stages("average")
    shutil.rmtree(paths.CHECKPOINTS)
    kept.rename(paths.CHECKPOINTS)


@pytest.mark.parametrize(
    ("tampers", "steps"),
    [
        (
            [
                lambda: swap_lines(paths.RAW / "train.tinytrain.en"),
                lambda: edit_json(paths.BINNED_STATS, pairs=61),
                edit_loss,
                lambda: edit_json(paths.AVERAGING, updates="12"),
                lambda: edit_json(paths.SCORES, bleu=99.0),
            ],
            ["download", "tokenize", "binarize", "train", "average", "score"],
        ),
        (
            [
                lambda: swap_lines(paths.TOKENIZED / "train.de"),
                average_others,
                lambda: run_stages("binarize", "decode"),
                lambda: edit(TRANSLATED, lambda text: text.replace("\n", " dog\n", 1)),
                lambda: run_stages("score"),
            ],
            ["tokenize", "chain", "intervals", "average", "decode"],
        ),
        ([rename_test_set, lambda: run_stages("decode", "score")], ["resolve", "download"]),
        ([as_big, lambda: swap_lines(paths.SUBWORDS / "codes.bpe")], ["resolve", "learn_subwords", "chain", "average"]),
    ],
    ids=["each step", "others averaged", "renamed test set", "another row"],
)
def test_changes_that_were_certified_are_named(run: Path, tampers: list[Tamper], steps: list[str]) -> None:
    """All files agree with the certificate, and most with what was made of them."""
    for tamper in tampers:
        tamper()
    run_stages("certify")
    status, findings, _ = verify()
    assert (status, those(findings, "differs")) == (1, steps), findings


@pytest.mark.parametrize(
    ("tamper", "contradictions"),
    [
        (lambda: replaced(CHECKPOINT, one_bit), [f"{CHECKPOINT} does not have the weights"]),
        (CHECKPOINT.unlink, ["the checkpoint of update 20 is missing"]),
        (lambda: shutil.copy(CHECKPOINT, STRANGE), [f"{STRANGE} does not have the weights"]),
        (lambda: resealed(lambda content: content["files"].pop(str(paths.VALIDATION_OUTPUTS))), [".*jsonl is missing"]),
        (edit_loss, [r"\S+ or validation.csv was edited within updates 4 to 6"]),
        (
            lambda: edit(paths.VALIDATION, lambda text: f"{text}{text.splitlines()[-1].replace('24,', '25,', 1)}\n"),
            [r"\S+ or validation.csv goes on after update 24"],
        ),
        (lambda: resealed(lambda content: content["training"].update(code="0")), [f"{paths.CHAIN} has another chain"]),
        (lambda: edit_json(paths.TRAINING, updates=1), ["results/training.json: updates is 1, in the certificate 24$"]),
        (
            lambda: (
                edit_json(paths.TRAINING, **dict.fromkeys(MEASURED, 1)),
                resealed(lambda content: content["measured"].update(dict.fromkeys(MEASURED, 1))),
            ),
            ["results/training.json: updates is 1, in the certificate 24; and 5 more"],
        ),
    ],
)
def test_what_training_left_does_not_contradict_the_chain(run: Path, tamper: Tamper, contradictions: list[str]) -> None:
    assert list(check.contradictions(certificate.load(paths.CERTIFICATE))) == []
    tamper()
    problems = list(check.contradictions(certificate.load(paths.CERTIFICATE)))
    assert len(problems) == len(contradictions), problems
    assert all(re.match(*pair) for pair in zip(contradictions, problems, strict=True)), problems


def test_updates_are_trained_again_with_the_threads_that_they_had(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forge(lambda link: link["conditions"].update(threads=1 if link["update"] <= 10 else 2))
    torchrun = Mock(side_effect=lambda folder, watch, threads: train_here(folder))
    monkeypatch.setattr(launch, "torchrun", torchrun)
    assert intervals("4:16").status == "recomputed"
    assert [call.kwargs["threads"] for call in torchrun.call_args_list] == [1, 2]


def test_forged_links_are_found_where_they_are_trained_again(run: Path) -> None:
    """And without the states to begin there, nothing is shown."""
    forge(lambda link: link.update(weights="0" * 64, moments="0" * 64) if link["update"] == 10 else None)
    status, findings, last = verify("--updates", "8:12")
    assert (status, last) == (1, "not verified, these differ: intervals")
    assert findings["intervals"][1] == "weights, moments part between updates 8 and 10"
    free_states()
    assert recorded().states().status == "inconclusive"
    finding = intervals()
    assert finding.status == "inconclusive"
    assert finding.detail.startswith("2 of 24 updates trained again (8.3%: 0 to 2); no state is kept here")


def test_a_forged_loss_is_found_whatever_its_link_says(run: Path) -> None:
    """The hash of a link does not cover when losses were recorded."""
    edit_loss()
    records = [*paths.read_table(paths.CURVES), *paths.read_table(paths.VALIDATION)]
    forge(
        lambda link: link.update(
            losses=chain.losses_hash(records, link["update"] - 2, link["update"]),
            validate_every=7 if link["update"] == 6 else link["validate_every"],
        )
    )
    assert intervals("0:8").detail == "losses part between updates 4 and 6"


def test_a_training_that_starts_from_another_model_passes_and_its_parent_is_named(run: Path) -> None:
    parent, subwords = Path("../parent"), certify.hashes([paths.SUBWORDS], Path())  # outside the repository
    shutil.copytree(paths.AVERAGE, parent)
    weights = sha256_of(parent / WEIGHTS)
    content = yaml.safe_load(paths.PARAMS.read_text())
    del content["overrides"]["subwords"]
    paths.PARAMS.write_text(yaml.safe_dump({**content, "seed": 2}))
    override("training", start_from=str(parent), updates=12, keep_states=0)
    edit(paths.TOKENIZED / "train.en", lambda text: text.replace("e", "a"))
    run_stages("learn_subwords", "binarize")
    now = certify.hashes([paths.SUBWORDS], Path())
    assert now.pop("data/subwords/words.txt") != subwords.pop("data/subwords/words.txt"), "of both texts"
    assert now == subwords, "learned from another text"
    run_stages("tokenize", "learn_subwords", "binarize")
    training()
    after_training()
    start = {"folder": str(parent), "weights": weights}
    loaded = certificate.load(paths.CERTIFICATE)
    assert loaded.settings["training"]["start_from"] == loaded.training.job["training"]["start_from"] == start
    findings = verified("--share", 1)
    assert findings["parent"] == ("equal", f"{parent}, whose own training is not checked: {weights}")
    assert findings["intervals"][1].startswith("12 of 12 updates")
    parent.rename("../moved")
    found = next(each for each in check.findings(paths.CERTIFICATE, (), 1) if each.step == "parent")
    assert found.status == "inconclusive"


def test_what_dvc_would_run_again_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are not as DVC locked them are tested in tests/end_to_end."""
    monkeypatch.setattr(check.graph, "upstream", lambda *_: ["certify"])  # the steps before are of other tests
    repository = SimpleNamespace(status=lambda: {"report": ["changed command"]})
    monkeypatch.setattr("dvc.repo.Repo", lambda: contextlib.nullcontext(repository))
    assert [each.step for each in check.findings(paths.CERTIFICATE, (), 0.01)] == ["certificate", "code"]
    Path("dvc.lock").touch()
    *_, last = check.findings(paths.CERTIFICATE, (), 0.01)
    assert last == Finding("dvc.lock", "inconclusive", "it was changed, or what these stages read: report")


def test_a_certificate_has_no_other_files(run: Path) -> None:
    resealed(lambda content: content["files"].update({"results/mine": "0"}))
    assert certificate.sealed(paths.CERTIFICATE).detail == "no stage makes results/mine"


def test_other_code_and_other_versions_are_named(run: Path) -> None:
    loaded = certificate.load(paths.CERTIFICATE)
    assert certificate.code(loaded).status == "equal"
    other = certificate.code(loaded.model_copy(update={"versions": {**loaded.versions, "torch": "9.9"}}))
    assert (other.status, "; torch was 9.9, here " in other.detail) == ("equal", True)
    Path("nmt").unlink()
    shutil.copytree(ROOT / "nmt", "nmt", ignore=shutil.ignore_patterns("__pycache__"))
    edit(Path("nmt/evaluation/bleu.py"), lambda text: f"{text}# Better.\n")
    other = certificate.code(loaded)
    assert other.status == "inconclusive"
    assert "is not committed as it is, so nobody else may have it" in other.detail
    edit(Path("nmt/training/trainer.py"), lambda text: f"{text}BETTER = 1\n")
    assert certificate.code(loaded).status == "differs"


def test_other_bits_of_a_gpu_without_a_fixed_order_are_no_difference(run: Path) -> None:
    conditions = {"device": "NVIDIA H100", "deterministic": False}
    forge(lambda link: link.update(weights="0" * 64, conditions={**link["conditions"], **conditions}))
    finding = intervals("0:2")
    assert (finding.status, "device was NVIDIA H100, here cpu" in finding.detail) == ("inconclusive", True)
    assert finding.detail.endswith("GPUs add in no fixed order: it shows nothing")


def leave_certificate_alone(*others: str) -> None:
    shutil.move(paths.CERTIFICATE, "theirs.json")
    for path in (*others, "models", "results", *map(str, (paths.RAW, paths.TOKENIZED, paths.SUBWORDS, paths.BINNED))):
        shutil.rmtree(path)


def test_a_certificate_alone_is_checked_from_the_corpus_on(run: Path) -> None:
    resealed(lambda content: content["measured"].update(valid_ppl=1.0))
    shutil.move(paths.CERTIFICATE, "others.json")
    write_json(paths.TRAINING, {**read_json(paths.TRAINING), "pairs": 1})
    run_stages("certify")
    leave_certificate_alone("work")
    status, findings, last = verify("--certificate", "others.json")
    absent = ["intervals", "train", "average", "decode", "score"]
    assert (status, those(findings, "inconclusive")) == (2, absent), findings
    assert [findings[step][0] for step in (*DATA, "chain")] == ["recomputed"] * 5
    assert findings["average"][1].endswith("is not here")
    assert last == f"verified, but for what is inconclusive: {', '.join(absent)}"
    for name, steps, detail in (("others", ["train", "score"], " is "), ("theirs", ["train"], ": pairs is ")):
        status, findings, _ = verify("--certificate", f"{name}.json", "--share", 1)
        assert (status, those(findings, "differs")) == (1, steps), findings
        assert findings["train"][1].startswith(f"{paths.TRAINING}{detail}")


def test_a_portable_run_is_made_again_from_its_certificate(run: Path) -> None:
    """By other code, which comes to the same bits; from the first update on, though states are kept here."""
    override("training", arithmetic="portable", precision="float32", updates=8, checkpoint_every=2)
    training()
    after_training()
    leave_certificate_alone()
    Path("nmt").unlink()
    shutil.copytree(ROOT / "nmt", "nmt", ignore=shutil.ignore_patterns("__pycache__"))
    edit(Path("nmt/training/trainer.py"), lambda text: f"{text}BETTER = 1\n")
    commit()
    findings = verified("--certificate", "theirs.json", "--share", 1)
    assert findings["code"][0] == "noted"
    assert {how for how, _ in findings.values()} == {"recomputed", "noted"}


def test_archives_without_a_checksum_are_no_root(run: Path, tmp_path: Path) -> None:
    catalog = Path("data/catalog/tiny.yaml")
    content = yaml.safe_load(catalog.read_text())
    del content["archives"]["tiny"]["sha256"]
    catalog.write_text(yaml.safe_dump(content))
    run_stages("resolve", "download", "certify")
    again = check.Remake(certificate.load(paths.CERTIFICATE), tmp_path)
    assert again.run("resolve").status == "recomputed"
    assert again.run("download") == Finding("download", "inconclusive", "no checksum of tiny was published")


def test_nothing_is_made_again_of_what_was_changed(run: Path, tmp_path: Path) -> None:
    replaced(paths.CHECKPOINTS / "last.safetensors", one_bit)
    here = check.Remake(certificate.load(paths.CERTIFICATE), tmp_path).take("train")
    assert [path for path in here if not (tmp_path / path).exists()] == ["models/checkpoints/last.safetensors"]


def test_verifys_own_code_must_be_committed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(certificate, "git", lambda *words: asked.extend(words) or b"")
    certificate.code(certificate.load(paths.CERTIFICATE))
    assert {"dvc.yaml", "wmt.py", "nmt", "pipeline", "data/catalog/tiny.yaml"} <= {*asked}


def test_the_catalogs_of_a_run_and_no_others_must_be_committed(run: Path) -> None:
    loaded = certificate.load(paths.CERTIFICATE)
    other, tiny = Path("data/catalog/other.yaml"), Path("data/catalog/tiny.yaml")
    other.write_text("extends: tiny\n")
    assert certificate.code(loaded).status == "equal"
    loaded.settings["run"]["corpus"] = "other"
    assert certificate.code(loaded).detail.startswith(f"{other} is not committed as it is")
    commit()
    tiny.write_text(f"{tiny.read_text()}# Edited.\n")
    assert certificate.code(loaded).detail.startswith(f"{tiny} is not committed as it is")


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda training: training["links"].pop(), "it ends at update 22, the training at update 24"),
        (lambda training: training["links"][3].update(weights="0" * 64), "it breaks at update 8: a link was changed"),
        (lambda training: training["job"]["training"].update(eps_ls=0.2), "of other settings: training.eps_ls is 0.1"),
        (lambda training: training["data"].update({"train.00009.arrow": "0" * 64}), "of another corpus: data/binned/"),
    ],
)
def test_a_chain_of_another_training_is_named(run: Path, change: Change, detail: str) -> None:
    resealed(lambda content: change(content["training"]))
    finding = check.chained(certificate.load(paths.CERTIFICATE), run)
    assert (finding.status, finding.detail[: len(detail)]) == ("differs", detail)


REFUSED: list[tuple[Tamper, str, str]] = [
    (lambda: paths.CERTIFICATE.write_text("{}"), "", "results/certificate.json is no certificate (`params` is missing"),
    (paths.CERTIFICATE.unlink, "", "results/certificate.json cannot be read"),
    (lambda: paths.CERTIFICATE.write_text("[" * 100_000), "", "results/certificate.json cannot be read ("),
    (lambda: resealed(lambda content: content.update(mine=1)), "", "is no certificate (mine is 1; extra inputs "),
    (lambda: resealed(lambda content: content["training"].update(mine=1)), "", "is no certificate (training.mine"),
    (lambda: resealed(lambda content: content["training"].update(state="../..")), "", "(training.state is '../..'"),
    (lambda: resealed(lambda content: content["training"].update(links=[])), "", "(training.links is []"),
    (lambda: None, "--updates 12", "--updates is '12': it must be A:B with 0 <= A < B <= 24, as 0:20"),
    (lambda: None, "--updates 5:3", "--updates is '5:3': it must be A:B with 0 <= A < B <= 24, as 0:20"),
    (lambda: None, "--updates 20:25", "it must be A:B with 0 <= A < B <= 24"),
    (lambda: None, "--share 0", "--share is 0: it must be above 0 and at most 1"),
    (lambda: resealed(lambda content: content["params"].update(seed=2)), "--certificate theirs.json", "(seed is 2"),
    # The number of this process, whose command has the stage's name in it.
    (lambda: write_json(paths.status_file("python"), {"state": "running", "pid": os.getpid()}), "", "its stage python"),
]


def test_what_cannot_be_checked_is_refused_in_a_sentence(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = paths.CERTIFICATE.read_bytes()
    Path("theirs.json").write_bytes(before)
    for change, options, sentence in REFUSED:
        paths.CERTIFICATE.write_bytes(before)
        change()
        assert sentence in refused("verify", *options.split())
        assert capsys.readouterr().out == "", "refused before the first check"


def test_a_failed_training_is_no_traceback(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def torchrun(folder: Path, watch: object, threads: int) -> int:
        (folder / "failed.json").write_text(f'{{"state": "failed", "error": "a bug of {threads} threads"}}')
        return 1

    monkeypatch.setattr("pipeline.trainings.launch.torchrun", torchrun)
    forge(lambda link: link["conditions"].update(threads=link["update"]))
    finding = check.tried("intervals", intervals, "8:9")
    why = "ChildProcessError: a training process failed: a bug of 10 threads; its output is above"
    assert (finding.status, finding.detail) == ("inconclusive", why)


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_a_published_certificate_is_whole_and_of_the_settings_of_today(path: Path, here: Path) -> None:
    with contextlib.chdir(ROOT):
        assert certificate.sealed(path).status == "recomputed"
    published = certificate.load(path)
    assert published.training.portable
    for name in ("data", "dvc.yaml"):
        Path(name).symlink_to(ROOT / name)
    paths.PARAMS.write_text(yaml.safe_dump(published.params))
    resolve.run()
    sections = set(certify.CERTIFIED) - {"versions"}  # Of the environment, which may be another.
    resolved = {name: certify.plain_section(name) for name in sections}
    assert resolved == {name: published.settings[name] for name in sections}
