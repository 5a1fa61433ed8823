import shutil
import sqlite3
from pathlib import Path

import pytest
from command_line import refused
from refusals import check_refusal
from tracked import connected, write_results

from nmt.errors import InputError
from pipeline.flows import services
from pipeline.tracking import server


def test_a_run_is_found_by_its_name_its_full_name_or_the_beginning_of_its_id(root: Path, tmp_path: Path) -> None:
    Path("scores.json").write_text("{}")
    with connected(root / "mlflow.db") as client:
        experiment = client.create_experiment("wmt-en-de", (root / "mlartifacts").as_uri())
        one, *same = (client.create_run(experiment, run_name=name).info.run_id for name in ("one", "same", "same"))
        client.log_artifact(one, "scores.json")
        client.log_artifact(one, "scores.json", "other")
        client.set_tag(one, "DVC_EXP_NAME", "lippy-duct")
    for number, name in enumerate(("one", f"one-{one[:8]}", one[:12], "lippy-duct")):
        full, (scores, lines) = server.fetch_artifacts(name, ["scores.json", "sentences.jsonl"], tmp_path / str(number))
        assert (full, scores.read_text(), lines.exists()) == (f"one-{one[:8]}", "{}", False)
        assert [path.name for path in (tmp_path / str(number)).iterdir()] == ["scores.json"], "what was asked for"
    said = check_refusal("^'same' names 2 of .*valid are same-", server.fetch_artifacts, "same", [], tmp_path / "same")
    assert all(run[:8] in said for run in same)
    all_runs = rf"valid are same-\w+, same-\w+, one-{one[:8]}$"
    check_refusal(f"^'' names 0 of MLflow's runs: {all_runs}", server.fetch_artifacts, "", [], tmp_path / "none")


@pytest.mark.parametrize("given", ["sqlite:///{original}/own.db", "sqlite:///own.db", "", "a link"])
def test_records_in_a_copy_outlive_it(root: Path, tmp_path: Path, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC's queued experiments work in copies, others' may link to `work`; a folder of artifacts is kept for ever."""
    shutil.copyfile(root / "mlflow.db", tmp_path / "own.db")
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "results", copy / "results")
    monkeypatch.chdir(copy)
    monkeypatch.setenv("WMT_STATE", "")
    if given == "a link":
        (copy / "work").symlink_to(root)
        given = ""
    else:
        monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", given.format(original=tmp_path))
    with server.session() as client:
        run = server.open_run(client, "state")
        client.log_text(run.info.run_id, "kept", "file")
    shutil.rmtree(copy)
    monkeypatch.chdir(tmp_path)
    with connected((tmp_path if given else root) / ("own.db" if given else "mlflow.db")) as client:
        stored = client.get_run(run.info.run_id)
    kept = Path(stored.info.artifact_uri.removeprefix("file://")) / "file"
    assert kept.read_text() == "kept"
    assert kept.is_relative_to(tmp_path / "work/mlartifacts")


def test_a_fault_of_ours_is_not_called_mlflows(root: Path) -> None:
    with pytest.raises(KeyError), server.session():
        raise KeyError("ours")
    with pytest.raises(InputError), server.session() as client:
        client.get_run("0" * 32)


@pytest.mark.parametrize("character", "?%#")
def test_a_path_with_a_sign_of_urls_is_refused(tmp_path: Path, character: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"a{character}20b").mkdir()
    monkeypatch.chdir(tmp_path / f"a{character}20b")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    check_refusal("addresses of databases allow no", server.uri)
    check_refusal("", services.serve, worker=False)


def test_deleted_experiments_and_old_tables_are_told_with_commands(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(root / "mlflow.db") as client:
        number = client.create_experiment("wmt-en-de", (root / "mlartifacts").as_uri())
        client.delete_experiment(number)
    write_results()
    message = refused("publish")
    assert f"wmt-en-de is deleted: restore it with `MLFLOW_TRACKING_URI=sqlite:///{root}/mlflow.db mlflow" in message
    assert f"mlflow gc --backend-store-uri sqlite:///{root}/mlflow.db --experiment-ids {number}`" in message
    assert f"experiments restore --experiment-id {number}`" in message
    old = root / "old/mlflow.db"  # MLflow checks a database once in a process.
    old.parent.mkdir()
    shutil.copyfile(root / "mlflow.db", old)
    with sqlite3.connect(old) as database:
        database.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    monkeypatch.setenv("WMT_STATE", str(old.parent))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # MLflow has set it.
    message = refused("publish")
    assert f"MLflow at sqlite:///{old}: Detected out-of-date database schema" in message
    assert "then run 'mlflow db upgrade <database_uri>' to migrate" in message


@pytest.mark.parametrize(
    ("address", "user", "expected"),
    [
        ("", "", "http://127.0.0.1:5000/wmt-en-de (while `make ui` runs)"),
        ("http://127.0.0.1:5001", "wmt", "http://127.0.0.1:5001/wmt-en-de"),
        ("https://me:secret@mlflow.example.org/", "", "https://mlflow.example.org/#/experiments"),
        ("postgresql://wmt:secret@db/mlflow", "", "postgresql://***@db/mlflow"),
    ],
)
def test_where_runs_are(root: Path, monkeypatch: pytest.MonkeyPatch, address: str, user: str, expected: str) -> None:
    for name, value in (("TRACKING_URI", address), ("TRACKING_USERNAME", user), ("PORT", "")):
        monkeypatch.setenv(f"MLFLOW_{name}", value)
    assert server.link("en-de") == expected
