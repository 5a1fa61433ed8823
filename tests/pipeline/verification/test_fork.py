"""A fork shares everything with its run but the changed settings, and what it cannot share is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from command_line import wmt
from tiny_run import ROOT, after_training, training

from nmt.config import InputError
from pipeline.common.paths import CERTIFICATE, CHAIN, CHECKPOINTS, CONFIG, PARAMS, SCORES
from pipeline.config import resolution
from pipeline.runs.pipeline_run import Run
from pipeline.runs.record import Record, current_record, runs_folder
from pipeline.verification import fork


@pytest.fixture
def record(run: Path) -> Record:
    """The record of the tiny run; params.yaml has another run's override by now."""
    (run / "data/catalog").symlink_to(ROOT / "data/catalog")
    content = {"row": "sample", "pair": "en-de", "corpus": "sample", "seed": 1, "overrides": {"model": {"N": 2}}}
    PARAMS.write_text(yaml.safe_dump(content))
    record = Record(runs_folder() / "mine")
    record.create(CONFIG)
    for path in (CERTIFICATE, SCORES):
        shutil.copyfile(path, record.results / path.name)
    return record


def begin(record: Record, update: int, *assignments: str) -> None:
    """Train a fork in the present folder, as `wmt fork` does in a copy."""
    content = fork.params(record, update, fork.changes(assignments))
    CONFIG.write_text(resolution.text(resolution.resolve(content)))
    training()


def links() -> dict[int, str]:
    return {link["update"]: link["link"] for link in json.loads(CHAIN.read_text())["links"]}


def test_a_fork_that_changes_no_result_ends_as_its_run(record: Record) -> None:
    """So order of sentences, dropout masks and learning rates are the run's, and it averages the same checkpoints."""
    before, names = links(), {path.name for path in CHECKPOINTS.iterdir()}
    begin(record, 16, "training.resume_minutes=7")
    assert links() == before
    assert {path.name for path in CHECKPOINTS.iterdir()} == names
    assert "update-00000012.safetensors" in names
    assert (
        json.loads(CHAIN.read_text())["state"]
        != json.loads((record.results / CERTIFICATE.name).read_text())["training"]["state"]
    )


def test_a_chain_of_another_version_beside_its_run_stops_no_fork(record: Record) -> None:
    foreign = Path("work/train/0-another/states/update-00000016")
    foreign.mkdir(parents=True)
    (foreign.parents[1] / "chain.jsonl").write_text('{"update": 16, "hash": "of another version"}\n')
    before = links()
    begin(record, 16, "training.resume_minutes=7")
    assert links() == before


def test_a_fork_parts_after_the_update(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    before = links()
    begin(record, 8, "training.learning_rate_scale=0.5", "model.P_drop=0.3", "training.updates=20")
    after = links()
    assert {update for update, link in after.items() if before[update] == link} == {2, 4, 6, 8}
    assert max(after) == 20
    curve = Path("results/training.csv").read_text().split()[1:]
    assert [int(line.split(",")[0]) for line in curve] == list(range(1, 21))
    # It can be checked as any run, from the state that it began with.
    after_training()
    capsys.readouterr()
    assert wmt("verify", "--share", 1, "--no-translate") == 0
    assert "12 of 12 updates (100.0%: 8 to 16, 16 to 20)" in capsys.readouterr().out
    assert wmt("verify", "--updates", "2:4", "--no-translate") == 1
    assert "must be A:B with 8 <= A < B <= 20" in capsys.readouterr().err
    own = Path("work/train") / json.loads(CERTIFICATE.read_text())["training"]["state"] / "states"
    for kept, remedy in ((8, "name updates from 16 on, as --updates 16:18"), (16, "no other part can")):
        shutil.rmtree(own / f"update-{kept:08d}")
        assert wmt("verify", "--updates", "9:10", "--no-translate") == 1
        assert f"so this part cannot be trained again: {remedy}\n" in capsys.readouterr().err


def test_a_fork_has_the_settings_of_its_run_and_not_those_of_today(record: Record) -> None:
    content = fork.params(record, 16, fork.changes(["training.eps_ls=0"]))
    ours = resolution.resolve(content).model_dump()
    run = yaml.safe_load(CONFIG.read_bytes())
    start = ours["training"].pop("fork")
    assert start == {"update": 16, "link": links()[16]}
    del run["training"]["fork"]
    assert ours.pop("training") == {**run.pop("training"), "eps_ls": 0.0}
    assert json.loads(json.dumps(ours)) == json.loads(json.dumps(run))


@pytest.mark.parametrize(
    ("update", "assignments", "sentence"),
    [
        (16, ["seed=2"], "-S seed=2: a fork changes SECTION.KEY=VALUE of model, training, averaging, search"),
        (16, ["binning.max_length=9"], "-S binning.max_length=9: a fork changes"),
        (16, ["training.rate"], "-S training.rate: a fork changes"),
        (16, ["model.N=["], "-S model.N=[: `[` is not valid YAML"),
        (10, ["training.eps_ls=0"], "--at is 10, but states are kept after these updates: 8, 16"),
        (16, ["model.d_ff=64"], "another shape than the kept state has: a fork can change no size of the model"),
        (16, ["training.updates=16"], "training.updates is 16, but the fork begins after update 16"),
        (16, ["training.eps=0"], "training.eps"),
    ],
)
def test_what_a_fork_cannot_change_is_refused(
    record: Record, update: int, assignments: list[str], sentence: str
) -> None:
    with pytest.raises(InputError) as refused:
        fork.params(record, update, fork.changes(assignments))
    assert sentence in str(refused.value)


def test_a_fork_that_failed_begins_again_with_the_present_code_in_the_folder_of_its_record(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    dotted = Record(shutil.copytree(record.folder, runs_folder() / "D-eps0.0-mine"))
    begun = []

    class Failing(Run):
        def begin(self, changes: object, target: str | None) -> dict[str, list[str]]:
            begun.append((self.name, self.copy.exists()))
            self.copy.mkdir(parents=True)
            return {}

        def dvc(self, *arguments: str, **options: object) -> int:
            return 1

    monkeypatch.setattr(fork, "Run", Failing)
    for _ in range(2):
        with pytest.raises(InputError, match=r"failed: read .*, fix the cause and run this again"):
            fork.fork(dotted, 8, ["training.learning_rate_scale=0.5"])
    (name, *others) = {name for name, _ in begun}
    assert others == []
    assert [left for _, left in begun] == [False, False]
    monkeypatch.setenv("WMT_RUN", name)
    found = current_record()
    assert found is not None
    assert found.folder.name == name


def test_a_state_that_is_gone_or_was_changed_is_no_start(record: Record) -> None:
    content = fork.params(record, 16, fork.changes(["training.eps_ls=0"]))
    (kept,) = Path("work/train").glob("*/states/update-00000016")
    shutil.copyfile(kept.with_name("update-00000008") / "model.safetensors", "other")
    (kept / "model.safetensors").unlink()
    shutil.move("other", kept / "model.safetensors")
    with pytest.raises(InputError, match="the weights of the kept state after update 16 were changed"):
        fork.params(record, 16, {})
    shutil.rmtree(kept.parent)
    with pytest.raises(
        InputError, match=r"states are kept after these updates: none: it kept none, or they were freed"
    ):
        fork.params(record, 16, {})
    CONFIG.write_text(resolution.text(resolution.resolve(content)))
    with pytest.raises(InputError, match=r"training.fork: no training in work/train keeps the state after update 16"):
        training()


def test_other_code_is_refused_unless_asked_for(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("nmt/code.py").write_text("2")
    with pytest.raises(InputError, match="mine was trained by other code"):
        fork.params(record, 16, {})
    monkeypatch.setenv("WMT_RESUME_ACROSS_CODE", "1")
    assert fork.params(record, 16, {})["row"] == "sample"


def test_the_command_names_the_run_that_it_cannot_fork(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    assert wmt("fork", "mine", "--at", 11, "-S", "training.eps_ls=0") == 1
    assert "fork: --at is 11, but states are kept after" in capsys.readouterr().err
    assert wmt("fork", "yours", "--at", 16, "-S", "training.eps_ls=0") == 1
    assert "'yours' names 0 runs" in capsys.readouterr().err
