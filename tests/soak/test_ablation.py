"""An ablation whose runs go beside each other, killed on its way, goes on with those that are missing."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from clones import Clone

pytestmark = pytest.mark.timeout(1800)

OPTIONS = "--rows base --rows C-N2 --seeds 1 --seeds 2 --updates 10 --width 16 --jobs 2"
COMMAND = (sys.executable, "-m", "pipeline.cli", "ablation", *OPTIONS.split())


def test_killed_it_goes_on_and_compares(tmp_path: Path) -> None:
    clone = Clone(tmp_path / "clone")
    clone.params(overrides={"training": {"tokens": 400}, "subwords": {"merges": 400}})
    with subprocess.Popen(
        COMMAND, cwd=clone.folder, env=clone.environment(), stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout
        for line in killed.stdout:
            if line.startswith("1 of 4 runs"):
                killed.kill()

    result = clone.run(*COMMAND)
    assert result.returncode == 0, result.stderr
    (missing,) = re.findall(r"^(\d) runs of 4 to do", result.stdout, re.MULTILINE)
    assert int(missing) < 4
    table = (clone.folder / "results/ablation.md").read_text()
    assert re.findall(r"^\| `(.+?)`", table, re.MULTILINE) == ["base", "C-N2"]
    assert len(re.findall(r"; the paper's [+-]\d", table)) == 2

    shown = json.loads(clone.run("dvc", "exp", "show", "--json").stdout)
    params = [
        experiment["revs"][0]["data"]["params"]["params.yaml"]["data"]
        for commit in shown
        for experiment in commit["experiments"] or []
    ]
    assert sorted((one["row"], one["seed"]) for one in params) == [("C-N2", 1), ("C-N2", 2), ("base", 1), ("base", 2)]
    assert not [path for path in (clone.folder / "work/copies").iterdir() if path.is_dir()]
    assert "0 runs of 4 to do" in clone.run(*COMMAND).stdout
