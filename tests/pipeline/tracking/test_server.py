from __future__ import annotations

from pathlib import Path

import pytest
from tracked import connected

from nmt.errors import InputError
from pipeline.tracking import server


def test_a_run_is_found_by_its_name_its_full_name_or_the_beginning_of_its_id(root: Path, tmp_path: Path) -> None:
    Path("scores.json").write_text("{}")
    with connected(root / "mlflow.db") as client:
        experiment = client.create_experiment("wmt-en-de", (root / "mlartifacts").as_uri())
        one, *same = (client.create_run(experiment, run_name=name).info.run_id for name in ("one", "same", "same"))
        client.log_artifact(one, "scores.json")
        client.set_tag(one, "DVC_EXP_NAME", "lippy-duct")
    for number, name in enumerate(("one", f"one-{one[:8]}", one[:12], "lippy-duct")):
        full, (scores, lines) = server.fetch_artifacts(name, ["scores.json", "sentences.jsonl"], tmp_path / str(number))
        assert (full, scores.read_text(), lines.exists()) == (f"one-{one[:8]}", "{}", False)
    with pytest.raises(InputError, match=r"^'same' names 2 runs \(same-") as caught:
        server.fetch_artifacts("same", [], tmp_path / "same")
    assert all(run[:8] in str(caught.value) for run in same)
    with pytest.raises(InputError, match=r"^'' names 0 runs: MLflow's page lists names and ids$"):
        server.fetch_artifacts("", [], tmp_path / "none")
