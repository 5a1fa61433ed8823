"""`wmt verify`: an honest run passes, every tampering is found and named, wrong input is refused in one sentence."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
import yaml
from command_line import wmt
from tiny_run import Silent, after_training, training

from nmt.common import tensors
from nmt.common.tensors import WEIGHTS
from nmt.config import InputError
from nmt.training import chain, checkpoint, step
from nmt.training.chain import INTERVAL
from nmt.training.step import Trainer
from pipeline.common.paths import (
    AVERAGE,
    BINNED,
    CERTIFICATE,
    CHAIN,
    CHECKPOINTS,
    CONFIG,
    CURVES,
    LAST,
    METRICS,
    SCORES,
    TRANSLATIONS,
    VALIDATION,
)
from pipeline.common.stage import Interrupted
from pipeline.runs.record import Record, runs_folder
from pipeline.runs.tables import curve
from pipeline.stages import certify, score
from pipeline.verification import weights
from pipeline.verification.certificate import HERE, Subject, load
from pipeline.verification.replay import Training

STEPS = [
    *("certificate", "corpus", "subwords", "settings", "code", "losses", "kept states", "training", "checkpoints"),
    *("average", "last weights", "translations", "score"),
]
AGAIN = {"certificate", "training", "average", "translations", "score"}
"""The steps that are made again, not only compared by their hashes."""


def verify(capsys: pytest.CaptureFixture[str], *options: object) -> tuple[int, dict[str, tuple[str, str]], str]:
    """`wmt verify`: its exit status, the status and detail of every step, and the last line."""
    capsys.readouterr()
    status = wmt("verify", *options)
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = [line for line in printed.out.splitlines() if not line.startswith("resuming after")]
    found = [re.fullmatch(r"(.{13}) (.{11}) (.*)", line) for line in lines[:-1]]
    return status, {match[1].strip(): (match[2].strip(), match[3]) for match in found if match}, lines[-1]


def test_an_honest_run_passes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    status, found, last = verify(capsys, "--share", 1)
    assert list(found) == STEPS
    assert {step: how for step, (how, _) in found.items()} == {
        step: "recomputed" if step in AGAIN else "equal" for step in STEPS
    }
    assert (status, last) == (0, "verified")
    assert found["training"][1].startswith("24 of 24 updates (100.0%: 0 to 8, 8 to 16, 16 to 24) in ")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("change", [{}, {"verify_every": 3}, {"verify_every": None}, {"validate_every": 5}], ids=str)
def test_a_training_that_was_extended_passes(
    run: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    """Its links and losses were at other updates before, the old end among them."""
    configuration = yaml.safe_load(CONFIG.read_text())
    configuration["training"] |= {"updates": 17, "checkpoint_every": 5}
    CONFIG.write_text(yaml.safe_dump(configuration))
    training()
    configuration["training"] |= {"updates": 30, **change}
    CONFIG.write_text(yaml.safe_dump(configuration))
    training()
    after_training()
    status, found, last = verify(capsys, "--share", 1, "--no-translate")
    assert (status, last) == (0, "verified"), found
    assert found["training"][1].startswith("30 of 30 updates")


def test_a_training_whose_settings_were_changed_between_two_links_passes(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its validations were after other updates from the stop on, so the stop has a link of its own."""
    original = Trainer.step

    def stopped(self: Trainer, update: Any) -> None:
        original(self, update)
        if update.number == 9:
            os.kill(os.getpid(), signal.SIGTERM)

    shutil.rmtree("work")
    configuration = yaml.safe_load(CONFIG.read_text())
    for every in (3, 5):
        configuration["training"] |= {"validate_every": every, "updates": 14}
        CONFIG.write_text(yaml.safe_dump(configuration))
        monkeypatch.setattr(Trainer, "step", stopped if every == 3 else original)
        with pytest.raises(Interrupted) if every == 3 else nullcontext():
            training()
    after_training()
    links = chain.parse(json.loads(CHAIN.read_text())["links"], CHAIN)
    assert [(link.update, link.validate_every) for link in links[3:6]] == [(8, 3), (9, 3), (10, 5)]
    status, found, last = verify(capsys, "--share", 1, "--no-translate")
    assert (status, last) == (0, "verified"), found


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5])
def test_a_share_of_the_updates_is_trained_again(run: Path, capsys: pytest.CaptureFixture[str], share: float) -> None:
    status, found, _ = verify(capsys, "--share", share, "--no-translate")
    assert status == 0
    (updates,) = re.findall(r"^(\d+) of 24 updates", found["training"][1])
    assert share * 24 <= int(updates) <= share * 24 + 2
    assert found["translations"][0] == "equal"


def test_named_updates_are_trained_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found, _ = verify(capsys, "--updates", "9:11", "1:2", "--no-translate")
    assert found["training"][1].startswith("6 of 24 updates (25.0%: 8 to 12, 0 to 2) in ")


def replaced(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change a file of tensors and leave others that share its bytes by hard links."""
    weights = tensors.load_tensors(path)
    change(weights)
    path.unlink()
    tensors.save_tensors(path, weights)


def one_weight(weights: dict[str, torch.Tensor]) -> None:
    table = weights["embedding.table"]
    table[3, 2] = torch.nextafter(table[3, 2], torch.tensor(9.0))


def other_seed(weights: dict[str, torch.Tensor]) -> None:
    torch.manual_seed(77)
    for tensor in weights.values():
        tensor.copy_(torch.randn_like(tensor) * tensor.std())


def swap_pairs() -> None:
    """The targets of two pairs change places."""
    path = next(path for path in sorted(BINNED.glob("train.*.arrow")) if pa.ipc.open_file(path).read_all().num_rows > 1)
    table = pa.ipc.open_file(path).read_all()
    targets = table.column("tgt").to_pylist()
    targets[:2] = targets[1::-1]
    table = table.set_column(1, "tgt", pa.array(targets, table.schema.field("tgt").type))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)


def change_state() -> None:
    (path,) = Path("work/train").glob("*/states/update-00000016")
    replaced(path / WEIGHTS, one_weight)


def average_another() -> None:
    replaced(checkpoint.checkpoint_path(CHECKPOINTS, 20), other_seed)
    after_training()


def average_another_in_secret() -> None:
    """The checkpoint has its own weights again after the average was made."""
    path = checkpoint.checkpoint_path(CHECKPOINTS, 20)
    shutil.copyfile(path, "kept")
    average_another()
    path.unlink()
    shutil.move("kept", path)


def edit_translation() -> None:
    path = TRANSLATIONS / "sampletest.average.de"
    lines = path.read_text().split("\n")
    lines[1] = f"{lines[1]} dog"
    path.write_text("\n".join(lines))


def edit_translation_and_certify() -> None:
    edit_translation()
    score.run(Silent())
    certify.run(Silent())


def edit_bleu(path: Path = METRICS) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "bleu": 99.0}))


def edit_bleu_and_certify() -> None:
    edit_bleu()
    edit_bleu(SCORES)
    certify.run(Silent())


def edit_loss() -> None:
    lines = CURVES.read_text().split("\n")
    cells = lines[5].split(",")
    cells[lines[0].split(",").index(INTERVAL[0])] = "0.5"
    lines[5] = ",".join(cells)
    CURVES.write_text("\n".join(lines))


TAMPERING: list[tuple[Callable[[], None], str, str]] = [
    (swap_pairs, "corpus", r"data/binned: train\.\d+\.arrow differ from the run's"),
    (change_state, "kept states", "the weights of the kept state after update 16 were changed"),
    (
        average_another,
        "checkpoints",
        r".*update-00000020\.safetensors does not have the weights .* chain recorded",
    ),
    (average_another_in_secret, "average", "the checkpoints' mean is not the averaged model: others were averaged"),
    (lambda: replaced(AVERAGE / WEIGHTS, one_weight), "average", r"models/average/.* was changed.*"),
    (lambda: replaced(LAST / WEIGHTS, one_weight), "last weights", r"models/last/.* was changed.*"),
    (edit_translation, "translations", r"results/translations: sampletest\.average\.de differ from the run's"),
    (edit_translation_and_certify, "translations", r".*sampletest\.average\.de: .* 1 lines otherwise, .* is line 2"),
    (edit_bleu, "score", r"results/metrics\.json: bleu is 99\.0, the certificate has .*"),
    (lambda: edit_bleu(SCORES), "score", r"results/scores\.json: bleu is 99\.0, the certificate has .*"),
    (edit_bleu_and_certify, "score", r"bleu was recorded as 99\.0 \(.*\), but the translations have .*"),
    (edit_loss, "losses", r"results/training\.csv or validation\.csv was edited within updates 4 to 6"),
]


@pytest.mark.parametrize(("tamper", "step", "detail"), TAMPERING, ids=[str(n) for n in range(len(TAMPERING))])
def test_tampering_is_found_and_named(
    run: Path, capsys: pytest.CaptureFixture[str], tamper: Callable[[], None], step: str, detail: str
) -> None:
    tamper()
    status, found, last = verify(capsys, *([] if step == "translations" else ["--no-translate"]))
    assert found[step][0] == "differs"
    assert re.fullmatch(detail, found[step][1])
    assert (status, step in last) == (1, True)


@contextmanager
def faster(first: int, last: int) -> Iterator[None]:
    """The learning rate is higher from update `first` to `last`; the history has the one of the schedule."""
    original = step.learning_rate

    def changed(update: int, *settings: Any) -> float:
        return original(update, *settings) * (1.01 if first <= update <= last else 1.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "learning_rate", changed)
        yield


def test_another_learning_rate_for_ten_updates_is_found(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All files agree with each other, and the certificate is that of this training."""
    shutil.rmtree("work")
    with faster(9, 18):
        training()
    after_training()
    status, found, last = verify(capsys, "--updates", "0:8", "--no-translate")
    assert (status, last) == (0, "verified")
    status, found, last = verify(capsys, "--updates", "8:24", "--no-translate")
    assert (status, last) == (1, "not verified: training differs")
    assert re.fullmatch(
        r"weights, moments, losses part between updates 8 and 10; loss at update 10 was recorded as \S+ and is \S+: "
        "settings, data, code and conditions are the recorded ones, so the recorded weights are not what they give",
        found["training"][1],
    )


def test_what_differs_here_is_named_where_bits_part(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of torch that adds in another order, and other code."""
    Path("nmt/code.py").write_text("2")
    monkeypatch.setattr(torch, "__version__", "9.9.0")
    status, found, _ = verify(capsys, "--share", 1, "--no-translate")
    assert (status, found["training"][0], found["code"][0]) == (1, "recomputed", "differs")
    with faster(1, 24):
        status, found, _ = verify(capsys, "--share", 1, "--no-translate")
    assert (status, found["training"][0]) == (1, "differs")
    assert re.search(r": the training's code differs; torch was \S+, here 9\.9\.0$", found["training"][1])


def test_other_bits_of_a_gpu_without_a_fixed_order_are_no_difference(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def on_a_gpu(content: dict[str, Any]) -> None:
        for link in content["training"]["links"]:
            link["conditions"] |= {"device": "NVIDIA H100", "deterministic": False}

    resealed(on_a_gpu)
    with faster(1, 24):
        status, found, last = verify(capsys, "--share", 1, "--no-translate")
    assert (status, last) == (0, "verified, but for what is not here: training")
    assert found["training"][1].endswith("GPUs add in no fixed order, so this shows nothing")


def test_another_clone_with_the_same_data_checks_the_certificate_alone(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.move(CERTIFICATE, "theirs.json")
    for path in ("work", "models", "results"):
        shutil.rmtree(path)
    status, found, last = verify(capsys, "--certificate", "theirs.json")
    absent = ["settings", "losses", "kept states", "checkpoints", "average", "last weights", "translations", "score"]
    assert [step for step, (how, _) in found.items() if how == "not here"] == absent
    assert [step for step, (how, _) in found.items() if how == "recomputed"] == ["certificate", "training"]
    assert "updates (" in found["training"][1]
    assert (status, last) == (0, f"verified, but for what is not here: {', '.join(absent)}")
    shutil.rmtree(BINNED)
    status, found, _ = verify(capsys, "--certificate", "theirs.json")
    assert found["training"] == (
        "not here",
        "it cannot be trained again without its corpus: data/binned is empty: `dvc repro` makes it",
    )


def test_a_recorded_run_is_checked_by_its_record(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While the folder holds the results of another one. A record keeps no last weights."""
    record = Record(runs_folder() / "mine")
    record.create(CONFIG)
    shutil.copytree("results", record.results, dirs_exist_ok=True)
    shutil.copytree(AVERAGE, record.model)
    for path in ("models", "results"):
        shutil.rmtree(path)
    status, found, last = verify(capsys, "min")
    assert (status, last) == (0, "verified, but for what is not here: last weights")
    assert found["translations"] == ("recomputed", "sampletest and sampledev (by its hash alone)")
    assert found["checkpoints"][1].startswith("3 in work/train/")


def test_a_recorded_run_whose_corpus_was_replaced_is_no_other_run(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = Record(runs_folder() / "mine")
    record.create(CONFIG)
    shutil.copytree("results", record.results, dirs_exist_ok=True)
    shutil.copytree(AVERAGE, record.model)
    for path in ("models", BINNED, "data/subwords"):
        shutil.rmtree(path)
    BINNED.mkdir()
    (BINNED / "valid.arrow").write_bytes(b"Another corpus.")
    configuration = yaml.safe_load(CONFIG.read_text())
    configuration["subwords"]["merges"] = 5
    CONFIG.write_text(yaml.safe_dump(configuration))
    status, found, last = verify(capsys, "min")
    absent = ["corpus", "subwords", "training", "last weights", "score"]
    assert [step for step, (how, _) in found.items() if how == "not here"] == absent
    assert "data/binned is another run's" in found["corpus"][1]
    assert (status, last) == (0, f"verified, but for what is not here: {', '.join(absent)}")


def test_a_chain_that_ends_early_is_no_whole_training(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resealed(lambda content: content["training"].update(links=content["training"]["links"][:-3]))
    _, found, _ = verify(capsys, "--no-translate", "--updates", "0:2")
    assert found["certificate"] == ("differs", "the chain ends at update 18, the training at update 24")
    assert "goes on after update 18" in found["losses"][1]


def resealed(change: Callable[[dict[str, Any]], None]) -> None:
    """Change the certificate, and its hash with it."""
    content = json.loads(CERTIFICATE.read_text())
    del content["seal"]
    change(content)
    CERTIFICATE.write_text(json.dumps({**content, "seal": certify.seal(content)}))


@pytest.mark.parametrize(
    ("averaged", "detail"),
    [
        ([], "no checkpoint was averaged, but the model is not the last weights"),
        ([4, 16, 24], "update 4 is none of the last checkpoints, but was averaged"),
        ([16, 20, 23], "update 23 is none of the last checkpoints, but was averaged"),
    ],
)
def test_an_average_of_other_checkpoints_is_found(run: Path, averaged: list[int], detail: str) -> None:
    resealed(lambda content: content.update(averaged=averaged))
    finding = weights.averaged(Subject(CERTIFICATE, HERE))
    assert (finding.status, finding.detail) == ("differs", detail)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("run", {"seed": 1}, "run.row: Field required"),
        ("training", [], "training: "),
        ("training.links", {}, "training.links: should be a valid list"),
        ("training.state", "../..", "training.state: String should match pattern"),
        ("training.job.training", {}, "training.job.training.updates: Field required"),
        ("averaged", ["a"], "averaged.0: should be a valid integer"),
        ("search.beam", 0, "search.beam: should be greater than"),
        ("references", {}, "references: Value error, that of the valid set is missing"),
        ("score", {"bleu": 1.0}, "score: Value error, bleu_set is missing"),
    ],
)
def test_a_malformed_certificate_is_told_in_a_sentence(run: Path, key: str, value: object, problem: str) -> None:
    def change(content: dict[str, Any]) -> None:
        *parts, last = key.split(".")
        for part in parts:
            content = content[part]
        content[last] = value

    load(CERTIFICATE)
    resealed(change)
    with pytest.raises(InputError, match=rf"^results/certificate.json is no certificate \({problem}.*\): name a .*$"):
        load(CERTIFICATE)


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace("update,", "updates,", 1),
        lambda text: text.replace("loss", "lost", 1),
        lambda text: text.replace("\n1,", "\n1,x", 1),
        lambda text: text.replace("\n2,", "\n2\n2,", 1),
        lambda text: text.replace("\n2,", ",1\n2,", 1),
        lambda text: text + "\0\xff",
    ],
)
def test_an_edited_table_of_losses_is_no_traceback(run: Path, edit: Callable[[str], str]) -> None:
    CURVES.write_text(edit(CURVES.read_text()), encoding="latin-1")
    finding = weights.curves(Subject(CERTIFICATE, HERE))
    assert (finding.status, " was edited" in finding.detail) == ("differs", True)


@pytest.mark.parametrize("forged", [6, None], ids=["one link", "all links"])
def test_a_forged_loss_is_found_whatever_its_links_say(
    run: Path, capsys: pytest.CaptureFixture[str], forged: int | None
) -> None:
    """The hash of a link does not cover when losses were recorded."""
    edit_loss()
    records = [{"update": update, **row} for path in (CURVES, VALIDATION) for update, row in curve(path)]

    def forge(content: dict[str, Any]) -> None:
        links: list[chain.Link | None] = [None]
        for link in chain.parse(content["training"]["links"], CERTIFICATE):
            before = links[-1]
            losses = chain.losses_hash(records, before.update if before else 0, link.update)
            hashed = chain.link_hash(before, link.update, link.weights, link.moments, losses)
            every = 7 if forged in (link.update, None) else link.validate_every
            links.append(link.model_copy(update={"losses": losses, "link": hashed, "validate_every": every}))
        content["training"]["links"] = [link.model_dump() for link in links if link is not None]
        content["training"]["job"]["training"]["verify_every"] = 1

    resealed(forge)
    _, found, _ = verify(capsys, "--no-translate", "--updates", "0:8")
    assert {step for step, (how, _) in found.items() if how == "differs"} == {"training"}
    assert found["training"][1].startswith("losses part between updates 4 and 6")


def test_an_edited_certificate_is_found(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resealed(lambda content: content["training"]["links"][3].update(weights="0" * 64))
    _, found, last = verify(capsys, "--no-translate")
    assert found["certificate"] == ("differs", "the chain breaks at update 8: a link was changed")
    assert last.startswith("not verified: certificate")
    CERTIFICATE.write_text(CERTIFICATE.read_text().replace('"beam": 2', '"beam": 3'))
    _, found, _ = verify(capsys, "--no-translate")
    assert found["certificate"][1] == "results/certificate.json was edited: its hash is not that of its content"


def other_run() -> None:
    resealed(lambda content: content["run"].update(seed=2))


def freed() -> None:
    shutil.rmtree(next(Path("work/train").glob("*/states")))


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        (other_run, [], "results/certificate.json is the certificate of the run sample-sample-s2, en-de, but results"),
        (freed, ["--updates", "12:14"], "keeps no state before update 12 any more, so this part cannot be trained ag"),
        (lambda: CERTIFICATE.write_text("{}"), [], "results/certificate.json is no certificate (run: Field required)"),
        (CERTIFICATE.unlink, [], "results/certificate.json cannot be read"),
        (lambda: None, ["--updates", "12"], "--updates is '12': it must be A:B with 0 <= A < B <= 24, as 0:20"),
        (lambda: None, ["--updates", "20:25"], "it must be A:B with 0 <= A < B <= 24"),
        (lambda: None, ["--share", "0"], "--share is 0: it must be above 0 and at most 1"),
        (lambda: None, ["nobody"], "'nobody' names 0 runs: `wmt runs` lists them"),
    ],
)  # fmt: skip
def test_what_cannot_be_checked_is_refused_in_a_sentence(
    run: Path, capsys: pytest.CaptureFixture[str], change: Callable[[], object], options: list[str], sentence: str
) -> None:
    change()
    assert wmt("verify", "--no-translate", *options) == 1
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_freed_states_leave_the_beginning_to_be_checked(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree("work/train")
    status, found, last = verify(capsys, "--no-translate")
    assert (status, last) == (0, "verified, but for what is not here: kept states")
    assert found["training"][1].startswith("2 of 24 updates (8.3%: 0 to 2)")


def test_other_settings_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CONFIG.write_text(CONFIG.read_text().replace("eps_ls: 0.1", "eps_ls: 0.2"))
    _, found, _ = verify(capsys, "--no-translate")
    assert found["settings"] == ("differs", "training.eps_ls was 0.1, here 0.2")
    # The certificate has the settings that its training had.
    assert found["training"][0] == "recomputed"


def test_a_failed_training_is_an_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.loads(CERTIFICATE.read_text())["training"]
    recorded = Training(content, CERTIFICATE)
    monkeypatch.setattr(
        "pipeline.training.launch.train",
        lambda folder, watch: (folder / "failed.json").write_text('{"state": "failed", "error": "a bug"}'),
    )
    with pytest.raises(ChildProcessError, match="training updates 8 to 10 again failed: a bug"):
        recorded.retrain(recorded.named("8:9"))
    assert not list(Path("work").glob(".verify.*"))
