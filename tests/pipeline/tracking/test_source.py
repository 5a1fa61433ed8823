from pathlib import Path

import pytest
from clones import commit, git
from tracked import connected

from pipeline.config import machine
from pipeline.tracking import source


def test_tags_name_the_repository_without_credentials(here: Path) -> None:
    Path("kept.py").touch()
    commit()
    git(here, "remote", "add", "origin", "https://me:secret@example.org/name")
    tags = source.tags()
    assert tags["differing_files"] == "none"
    assert tags["mlflow.source.name"] == "https://***@example.org/name"
    assert tags["versions"].startswith("python 3.")


def test_a_patch_has_no_credentials_and_is_else_as_it_was(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = [
        "+origin: https://me:s3cret@example.org/name",
        "+  'url': 'https://store.example.org/file?signature=s3cret'",
        "+AWS_SECRET_ACCESS_KEY=s3cret",
        '+    "db_password": "s3cret",',
        "+HF_TOKEN: s3cret",
        '+os.environ["AWS_SECRET_ACCESS_KEY"] = "s3cret"',
        "+os.environ['HF_TOKEN']='s3cret'",
        '+os.environ.setdefault("WANDB_API_KEY", "s3cret")',
        '+secret_key="""two s3cret words"""',
        '+os.environ["DB_PASS"] = "s3cret"',
        "+export HF_TOKEN=hf_s3cretDEF456 # mine",
        "+--token=ghp_s3cret456 --all",
        '+GITHUB_TOKEN_2 = "ghp_s3cret"',
        '+token: str = "ghp_s3cret"',
        "+HF_TOKEN=s3cretabcdefghijklmnop\r",
        "+postgresql://wmt:s3/s3cret@db/x",
        "+password = 'two s3cret words'",
        "+Authorization: Bearer s3cret",
    ]
    plain = [
        "+  tokens: 25000",
        "+self.batch_tokens = 65_536 if on_gpu else 4096",
        "+max_tokens: 80",
        "+bos_token = 2",
        "+found = re.compile(r'(?<=a)b') if a else b@c",
        "+see https://example.org/a@b",
    ]
    patch = "\n".join([*secret, *plain])
    monkeypatch.setattr(source, "difference", lambda *_: patch.encode())
    with connected(root / "mlflow.db") as client:
        run = client.create_run(client.create_experiment("wmt", (root / "mlartifacts").as_uri())).info.run_id
        source.send(client, run)
        (kept,) = root.rglob("differences.patch")
    lines = kept.read_text().split("\n")
    assert "s3cret" not in kept.read_text()
    assert [line.partition("***")[0] for line in lines[:3]] == [
        "+origin: https://", "+  'url': 'https://store.example.org/file?", "+AWS_SECRET_ACCESS_KEY="
    ]  # fmt: skip
    assert lines[len(secret) :] == plain


def test_a_report_gets_the_names_of_the_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {"all runs side by side:": "http://127.0.0.1:5000/wmt-en-de (while `make ui` runs)"}
    unknown = {"changed or new, and not in the commit:": "unknown: git names no commit here"}
    assert source.provenance() == {"commit": "unknown", **runs, **unknown}
    monkeypatch.setenv("DVC_EXP_NAME", "bold-run")
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0a1b")
    commit = {"commit": "unknown", "DVC experiment": "bold-run", "Prefect run": "0a1b"}
    assert source.provenance() == {**commit, **runs, **unknown}


def test_the_memory_of_the_hardware_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    before = source.hardware()
    monkeypatch.setattr(machine, "gpus", lambda: [machine.Gpu("GPU-1", "A100", "40960 MiB", "8.0")])
    assert source.hardware() == before.replace("GPUs: none", "GPUs: A100, 40960 MiB")
