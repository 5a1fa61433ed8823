"""The commands of "A team's day" in pipeline/README.md, as they stand there but for sizes, ports and times."""

import contextlib
import os
import random
import re
import signal
import subprocess
import time
import zipfile
from pathlib import Path

import httpx
import pytest
import yaml
from agents import until
from clones import ROOT, SHRUNKEN, WORDS, Clone
from orchestra import Orchestra
from ports import free_port

PORT = free_port()
SMALLER = {
    "--holdout 1000": "--holdout 5", "updates=1200": "updates=12", "-p 5001": f"-p {PORT}", "0 20 * * *": "* * * * *"
}  # fmt: skip
BAD = b"no \xff UTF-8\tbad\nwithout a second column\nwithout text\t\n"


def day() -> list[str]:
    """The commands, in order, without comments."""
    section = (ROOT / "pipeline/README.md").read_text().split("\n## A team's day\n")[1].split("\n## ")[0]
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```$", section, flags=re.DOTALL | re.MULTILINE))
    for there, here in SMALLER.items():
        assert there in blocks
        blocks = blocks.replace(there, here)
    return [re.sub(r"\s+#.*", "", line) for line in re.sub(r"\\\n\s*", "", blocks).splitlines()]


def write_text(folder: Path) -> None:
    """Pairs of one line twice: it is the same to a pipeline that runs for seconds."""
    chance = random.Random(5)
    sizes = {"sentences": 80, "everyday": 4, "captions": 5, "train": 60, "valid": 4}
    for name, count in sizes.items():
        lines = [" ".join(chance.choices(WORDS.split(), k=chance.randrange(3, 9))) for _ in range(count)]
        if name == "sentences":
            (folder / "sentences.tsv").write_bytes(BAD + "".join(f"{line}\t{line}\n" for line in lines).encode())
        else:
            for language in ("de", "en"):
                (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines))


def shell(clone: Clone, environment: dict[str, str], command: str) -> str:
    """What a command that ends well says."""
    print(f"{time.strftime('%X')} {command}", flush=True)
    words = ["bash", "-c", command]
    done = subprocess.run(words, cwd=clone.folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout + done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.timeout(1200)
def test_every_command_of_a_teams_day(tmp_path: Path) -> None:
    clone = Clone(tmp_path / "clone")
    orchestra = Orchestra(clone, tmp_path / "home")
    write_text(clone.folder)
    clone.params(overrides={**SHRUNKEN, "subwords": {"vocabulary": 300}})
    *first, export, serve, package, schedule = day()
    said = ""
    for command in first:
        if command.startswith("dvc exp run -n tuned"):  # Few words make no 8,000 pieces; a parent has its own.
            params = clone.folder / "params.yaml"
            params.write_text(re.sub(r"(?m)^  subwords:\n(    .*\n)+", "", params.read_text()))
        said += shell(clone, clone.environment(), command)
    for reason in ("not UTF-8", "not two columns", "one-sided"):
        assert f"catalog: 1 left out, {reason}" in said
    assert "5 pairs held out for each of valid" in said
    for name in ("captions", "everyday"):
        assert re.search(rf"^  {name}, \d lines: .* to .*, p = ", said, flags=re.MULTILINE)
    config = yaml.safe_load((clone.folder / "results/config.yaml").read_text())
    assert (config["training"]["start_from"]["folder"], config["training"]["updates"]) == ("data/local/general", 12)

    served = f"{export}\nexec {serve}"
    log = tmp_path / "mlflow.log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            ["bash", "-c", served], cwd=clone.folder, env=clone.environment(), stdout=file, stderr=file,
            start_new_session=True,
        )  # fmt: skip

    def answer() -> httpx.Response | None:
        assert server.poll() is None, log.read_text()
        with contextlib.suppress(httpx.ConnectError):
            return httpx.post(f"http://127.0.0.1:{PORT}/invocations", json={"inputs": ["the old man"]}, timeout=60)

    try:
        (translated,) = until(answer, "an answer of MLflow", 400).json()["predictions"]
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    assert f"{translated}\n" == shell(clone, clone.environment(), "echo the old man | wmt translate models/average")

    shell(clone, clone.environment(), package)
    with zipfile.ZipFile(clone.folder / "de_en.argosmodel") as archive:
        assert "translate-de_en-1_0/metadata.json" in archive.namelist()

    with orchestra.serving():
        shell(clone, orchestra.environment(), schedule)
        earliest = {"sort": "EXPECTED_START_TIME_ASC", "limit": 1}
        (run,) = until(lambda: orchestra.call("flow_runs/filter", earliest), "a scheduled run")
        assert orchestra.ended(run["id"])["state_type"] == "COMPLETED", orchestra.messages(run["id"])
        assert orchestra.how(run["id"])["train"] == "Cached"
