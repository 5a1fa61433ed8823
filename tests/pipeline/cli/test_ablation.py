import contextlib
import json
import math
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clones import ROOT
from command_line import printed, refused, wmt
from refusals import check_refusal

from pipeline.cli import ablation
from pipeline.cli.ablation import Interval, Plan, markdown
from pipeline.config import catalogs, machine, resolution, rows
from pipeline.flows import copies

PLAN = Plan("en-de", "sample", 4, 2, {"training": {"updates": 10}, "subwords": {"merges": 400}}, repository="a")
NAMES = {PLAN.name(row, 1): (row, 1) for row in ("base", "A-h1", "A-h4", "A-h16")}


def test_rows_are_scaled_together() -> None:
    def model(row: str) -> dict[str, int]:
        return PLAN.params(row, 1)["overrides"]["model"]

    assert model("base") == {"N": 3, "d_model": 128, "d_ff": 512, "d_k": 16, "d_v": 16}
    assert (model("C-N2")["N"], model("A-h1")["d_k"], model("B-dk16")["d_k"]) == (1, 128, 4)
    check_refusal("row C-N2: N of 2 is divided to 0", Plan("en-de", "sample", 4, 4, {}, "a").params, "C-N2", 1)


@pytest.fixture
def asked(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    """The plan of an ablation for the content of params.yaml."""
    monkeypatch.setattr(ablation, "head", lambda: "c")
    monkeypatch.setattr(ablation, "difference", lambda *paths: b"")

    def asked(updates: int = 10, **params: Any) -> Plan:
        Path("params.yaml").write_text(json.dumps({"row": "base", "corpus": "sample", "seed": 1, **params}))
        return ablation.plan_of(None, 4, 2, updates, 0.5)

    return asked


@pytest.mark.parametrize("updates", [3, 1000])
def test_every_row_resolves(updates: int, asked: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    plan = asked(updates, pair="en-de")
    monkeypatch.chdir(ROOT)
    for row in rows.table().rows if updates == 3 else ("base", "big"):
        if rows.row(row).paper.bleu is not None:
            resolution.resolve(plan.params(row, 1))


def test_overrides_of_params_hold_for_all_runs_under_the_budget(asked: Callable[..., Plan]) -> None:
    given = {"training": {"tokens": 400, "updates": 7}, "subwords": {"merges": 300}, "search": None, "model": {}}
    shared = asked(pair="en-de", overrides=given | {"averaging": {"best": 2}}).overrides
    assert shared["averaging"] == {"last": 5, "best": None}
    assert shared["training"].items() >= {("tokens", 400), ("warmup_steps", 400), ("learning_rate_scale", 0.5)}
    assert shared["training"].items() >= {("updates", 10), ("checkpoint_every", 2)}
    assert shared["subwords"] == {"merges": 300}
    # A vocabulary is sized as its pair's is.
    assert asked(pair="en-fr").overrides["subwords"] == {"vocabulary": 4000}


def test_wrong_settings_are_refused_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(ablation, "run_all", None)  # A call of it would be an error.
    assert "`bigg` is not a row of rows.yaml" in refused("ablation", "--rows", "base", "--rows", "bigg")
    assert "training.updates is 0" in refused("ablation", "--updates", "0")
    assert "seed is 18446744073709551616" in refused("ablation", "--seeds", "1", "--seeds", 2**64)
    for name in ("--width", "--depth", "--jobs"):
        assert wmt("ablation", name, "0") == 2
        assert f"Invalid value for '{name}'" in capsys.readouterr().err


@pytest.mark.parametrize("fails", ["repro", "save"])
def test_missing_runs_work_in_copies_of_the_beginning_and_a_failure_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: str
) -> None:
    done, failing = PLAN.name("A-h4", 1), PLAN.name("A-h16", 1)
    missing = [name for name in NAMES if name != done]
    events = []

    @contextlib.contextmanager
    def made(original: Path, name: str, changes: dict[str, Any]) -> Iterator[Path]:
        assert changes == PLAN.params(*NAMES[name])
        events.append(("made", name))
        try:
            yield tmp_path / name
        finally:
            events.append(("removed", name))

    def run(copy: Path, command: list[str], log: Callable[[str], None], tick: object, **variables: str) -> int:
        events.append(("run", copy.name))
        log("the cause")
        return int(copy.name == failing and fails != "save")

    def save(copy: Path, stages: object, log: Callable[[str], None]) -> None:
        if copy.name == failing:
            raise ChildProcessError
        events.append(("saved", copy.name))

    monkeypatch.setattr(copies, "made", made)
    monkeypatch.setattr(copies, "run", run)
    monkeypatch.setattr(copies, "save", save)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    check_refusal(f"^{failing} failed: fix the cause", ablation.run_all, PLAN, NAMES, {done}, jobs=1)
    assert "OMP_NUM_THREADS" not in os.environ, "the launcher divides the cores"
    assert capsys.readouterr() == ("3 runs of 4 to do\n1 of 3 runs, 0 minutes\n2 of 3 runs, 0 minutes\n", "the cause\n")
    assert events[:3] == [("made", name) for name in missing]
    assert [name for what, name in events if what == "run"] == missing
    assert [name for what, name in events if what == "saved"] == [name for name in missing if name != failing]
    assert sorted(events[-3:]) == sorted(("removed", name) for name in missing)


@pytest.mark.parametrize(
    ("gpus", "jobs", "shown"),
    [("", 2, ["", ""]), ("ab", 2, ["a", "b"]), ("abcd", 2, ["a,c", "b,d"]), ("a", 2, ["a", "a"]), ("ab", 1, ["a,b"])],
)
def test_each_job_has_gpus_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: str, jobs: int, shown: list[str]
) -> None:
    both, devices = threading.Barrier(jobs), list[str]()

    def run(copy: Path, command: list[str], log: object, tick: object, **variables: str) -> int:
        both.wait(60)  # So many work at the same time.
        devices.append(variables.get("CUDA_VISIBLE_DEVICES", ""))
        both.wait(60)
        return 0

    monkeypatch.setattr(machine, "gpus", lambda: [machine.Gpu(name, "H100", "81559 MiB", "9.0") for name in gpus])
    monkeypatch.setattr(copies, "made", lambda _, name, __: contextlib.nullcontext(tmp_path / name))
    monkeypatch.setattr(copies, "run", run)
    monkeypatch.setattr(copies, "save", lambda *_: None)
    ablation.run_all(PLAN, NAMES, (), jobs)
    assert [sorted(devices[at : at + jobs]) for at in range(0, 4, jobs)] == [shown] * (4 // jobs)


def test_a_name_tells_settings_and_text_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {PLAN.name("base", 1), PLAN.name("base", 2), PLAN.name("D-pdrop0.0", 1)}
    names.add(replace(PLAN, overrides={"training": {"updates": 11}}).name("base", 1))
    names.add(replace(PLAN, repository="b").name("base", 1))
    catalog = catalogs.load("sample")
    archives = {name: one.model_copy(update={"sha256": "0" * 64}) for name, one in catalog.archives.items()}
    monkeypatch.setattr(catalogs, "load", lambda _: catalog.model_copy(update={"archives": archives}))
    names.add(PLAN.name("base", 1))
    assert len(names) == 6
    assert not any("." in name for name in names)


def test_the_report_is_of_different_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(ablation, "OUT", tmp_path / "out")
    monkeypatch.setattr(ablation, "finished", lambda commit: {})
    monkeypatch.setattr(ablation, "results", lambda experiments, names: names)
    monkeypatch.setattr(ablation, "run_all", lambda plan, names, known, jobs: None)
    monkeypatch.setattr(ablation, "markdown", lambda caption, measured: f"{len(measured)} runs")
    assert printed("ablation", "--rows", "base", "--seeds", "1", "--seeds", "2", "--seeds", "1") == "2 runs\n"
    assert (tmp_path / "out").read_text() == "2 runs"


@pytest.mark.parametrize(
    ("pair", "overrides", "message"),
    [
        ("en-de", "{model: {P_drop: 0.2}}", "params.yaml: overrides.model would change the model of every row"),
        ("en-de", "{training: {start_from: parent}}", "params.yaml: overrides.training.start_from would change the"),
        ("en-tree", "{}", "params.yaml: pair is en-tree, but Table 3's rows are compared by BLEU"),
        ("en-th", "{}", "sacreBLEU cannot split `th` into words: set its tokenizer to char or flores200"),
        ("en-en", "{}", "params.yaml: pair is 'en-en'; a pair is two different ISO 639 codes"),
    ],
)
def test_params_that_change_every_row_are_refused(here: Path, pair: str, overrides: str, message: str) -> None:
    Path("params.yaml").write_text(f"row: base\npair: {pair}\ncorpus: sample\nseed: 1\noverrides: {overrides}\n")
    assert message in refused("ablation")


def test_an_interval_is_students() -> None:
    # By hand: the standard deviation is 1, t of 2 degrees of freedom 4.3027, and 4.3027 / sqrt(3) = 2.4841.
    assert Interval.of([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2 - 2.4841, 2 + 2.4841), abs=1e-4)
    assert Interval.of([2.0]) == (2.0, -math.inf, math.inf)
    assert Interval.of([2.0]).text(1) == "2.0 (one seed)"


def test_the_report_says_which_trends_stand() -> None:
    measured: dict[str, dict[str, Any]] = {
        "base": {"valid_ppl": [10.0, 10.1, 9.9], "valid_bleu": [30.0, 30.2, 29.8], "params": [1e6] * 3},
        "C-N2": {"valid_ppl": [12.0, 12.1, 11.9], "valid_bleu": [30.5, 29.5, 30.0], "params": [5e5] * 3},
        "D-pdrop0.0": {"valid_ppl": [9.0, 9.1, 8.9], "valid_bleu": [28.0, 28.2, 27.8], "params": [1e6] * 3},
    }
    text = markdown(ablation.caption_of(PLAN), measured)
    assert "layers by 2; updates 10, merges 400. 95% intervals" in text
    base, layers, dropout = (line.strip("| ").split(" | ") for line in text.splitlines()[-3:])
    assert base == ["`base`", "1.00 M", "10.00 (9.75 to 10.25)", "4.92", "", "30.0 (29.5 to 30.5)", "25.8"]
    assert layers[4] == "+2.00 (+2.00 to +2.00); the paper's +1.19: as in the paper"
    assert layers[7].endswith("; the paper's -2.1: these seeds show none")
    assert dropout[4] == "-1.00 (-1.00 to -1.00); the paper's +0.85: against the paper"
