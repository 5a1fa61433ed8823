import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock, PropertyMock

import pytest
import typer
from clones import ROOT
from command_line import printed, refused, wmt
from model_folders import folder_of

import wmt as console_script
from nmt.errors import InputError
from pipeline.cli import app as cli
from pipeline.cli import runs


def commands(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A command and those below it, by their names."""
    yield names, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *names, name)


ADD = "catalog add mine --pair en-de --train a a --valid a a --test a a"
COMMANDS = dict(commands(typer.main.get_command(cli.app)))


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 80 columns, without colours."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.setattr("typer.rich_utils.FORCE_TERMINAL", False)


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_every_help_holds_an_example_that_is_right(names: tuple[str, ...]) -> None:
    output = re.sub(r" +$", "", printed(*names, "--help"), flags=re.MULTILINE)
    example = output.split(" Example:\n", maxsplit=1)[1].split("\n\n", maxsplit=1)[0]
    typed = [shlex.split(line) for line in re.findall(r"^ +wmt (.*)$", example.replace("\\\n", ""), re.MULTILINE)]
    assert typed
    for words in typed:
        path = max((path for path in COMMANDS if words[: len(path)] == list(path)), key=len)
        arguments = words[len(path) : words.index("<") if "<" in words else None]
        assert path[: len(names)] == names
        # Refuses what is no option, and arguments that are too few or too many.
        COMMANDS[path].make_context(path[-1], arguments)


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        *((command, "dvc.yaml") for command in ("publish", "unlock", "join", "summary", "verify", ADD, "ui")),
        *((command, "data/catalog") for command in ("compare one", "catalog list", "serve")),
    ],
)
def test_outside_the_repository_nothing_is_done(command: str, missing: str, empty_repository: Path) -> None:
    Path("a").write_text("x\n")
    Path(missing).rename("other")
    before = sorted(empty_repository.rglob("*"))
    assert f": {missing} is not in {empty_repository}: run this in the repository's root" in refused(*command.split())
    assert sorted(empty_repository.rglob("*")) == before


def test_without_standard_output_a_command_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a shell leaves it by `>&-`."""
    monkeypatch.setattr(sys, "stdout", None)
    assert wmt("rows") == 0


def test_ctrl_c_during_the_imports_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Typer ends at later ones."""
    loading = Mock(spec=[])
    type(loading).main = PropertyMock(side_effect=KeyboardInterrupt)
    monkeypatch.setitem(sys.modules, "pipeline.cli.app", loading)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        console_script.main()
    assert ended.value.code == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_ended_command_leaves_nothing_half_written(number: signal.Signals, tmp_path: Path) -> None:
    program = (
        "import os; from pathlib import Path; from nmt.common.files import writing; from pipeline.cli import app\n"
        "def end(prog_name):\n"
        "    with writing(Path('whole')) as half:\n"
        "        half.touch()\n"
        f"        try: os.kill(os.getpid(), {number})\n"
        f"        finally: os.kill(os.getpid(), {number})\n"  # As a closed terminal does.
        "app.app = end; app.main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=False)
    assert (ended.returncode, [*tmp_path.iterdir()]) == (128 + number, [])


def test_a_closed_pipe_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        command = [sys.executable, "-m", "pipeline.cli", "rows"]
        result = subprocess.run(command, cwd=ROOT, stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (result.returncode, result.stderr) == (1, b"")


@pytest.mark.parametrize("command", ["bleu --lang de", "evalb"])
def test_texts_may_be_pipes_and_what_cannot_be_read_is_said(command: str, tmp_path: Path) -> None:
    pipes = []
    for _ in range(2):
        reading, writing = os.pipe()
        os.write(writing, b"(S (N dogs) (V sleep))\n")
        os.close(writing)
        pipes.append(reading)
    assert " 100.0" in printed(*command.split(), *(f"/dev/fd/{pipe}" for pipe in pipes))
    for pipe in pipes:
        os.close(pipe)
    assert f"{tmp_path}: Is a directory" in refused(*command.split(), tmp_path, tmp_path)


def test_a_model_that_makes_no_trees_does_not_parse(tmp_path: Path) -> None:
    model = folder_of(tmp_path / "model")
    sentence = refused("parse", model, "--input", tmp_path / "lines")
    assert sentence == f"parse: {model} writes de, not trees: use wmt translate"


def test_lack_of_memory_is_a_sentence_and_an_error_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    advice = "free some, or raise its limit (ulimit -v, the container's); `wmt translate` takes less by --batch-tokens"
    for said in ("libtorch_cpu.so: failed to map segment from shared object", "CUDA out of memory. Tried to allocate"):
        monkeypatch.setattr(runs, "read_json", Mock(side_effect=ImportError(said)))
        assert refused("summary") == f"summary: memory ran out ({said}): {advice}"
    told = "CUDA out of memory: raise training.shards"
    monkeypatch.setattr(runs, "read_json", Mock(side_effect=InputError(told)))
    assert refused("summary") == f"summary: {told}", "an error that says what to do is told as it is"
    monkeypatch.setattr(runs, "read_json", Mock(side_effect=ImportError("a bug")))
    with pytest.raises(ImportError, match="a bug"):
        cli.app(["summary"], prog_name="wmt")


def test_another_package_of_our_name_may_come_first(tmp_path: Path) -> None:
    (tmp_path / "pipeline").mkdir()
    for name in ("__init__", "cli"):
        (tmp_path / f"pipeline/{name}.py").touch()
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-c", "from wmt import main; main()", "--help"]
    assert b"wmt translate" in subprocess.check_output(command, cwd=tmp_path, env=environment)
