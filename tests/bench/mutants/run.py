"""Mutation testing: change the code wrongly, one small change at a time, and see whether a test fails.

    python tests/bench/mutants/run.py [MODULE ...] [--sample 600] [--jobs 2] [--again]

cosmic-ray makes the mutants. Of all replacements of one operator at one place a single one is drawn; the sample is
the mutants whose text has the smallest hashes, so that a change elsewhere leaves it as it is. Each mutant is tried in
a copy of the repository: a process that has imported torch forks, imports the mutated code and runs the tests that
TESTS names until one fails; tests that took a second or more run last. A run that takes far longer than the unchanged
code counts as killed. Mutants that change no behaviour are listed in equivalent.yaml, each with its reason, and are
left out.

Verdicts are kept in work/mutants/verdicts.jsonl, by the mutant's text and the bytes of its module and tests: a run
that is interrupted goes on where it was. The report is a table by module, then the survivors.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
WORK = ROOT / "work/mutants"
Span = tuple[tuple[int, int], tuple[int, int]]
UNCHANGED = "unchanged"  # the key of the records of runs without a change
NOT_RUN = 70  # the exit status of a process in which pytest failed, not a test
LINES = 3  # lines of a change that are shown and hashed

TESTS: dict[str, tuple[str, ...]] = yaml.safe_load((HERE / "modules.yaml").read_text(encoding="utf-8"))
"""The modules that are mutated, each with the tests that ought to notice."""


@dataclass(frozen=True)
class Mutant:
    """One wrong change, not made yet."""

    module: str
    operator: str
    occurrence: int  # cosmic-ray's number of the place, among those where the operator fits
    line: int
    key: str  # a hash of the change: the same wherever in the module the line stands


@cache
def operators() -> dict[str, object]:
    """An instance of every operator, by its name."""
    sys.path.insert(0, str(HERE))
    from cosmic_ray.operators.provider import OperatorProvider
    from operators import RemoveKeywordArgument, RemoveStatement

    provider = OperatorProvider()
    # These two need names that are given by hand.
    by_name = {name: provider[name]() for name in provider if name not in {"VariableReplacer", "VariableInserter"}}
    return {**by_name, "RemoveKeywordArgument": RemoveKeywordArgument(), "RemoveStatement": RemoveStatement()}


def silent_spans(source: str) -> list[Span]:
    """Where a change has no effect at run time: annotations, and what runs as a script alone."""
    parts: list[Any] = []
    for node in ast.walk(ast.parse(source)):
        parts += [getattr(node, "annotation", None), getattr(node, "returns", None)]
        parts += [each for each in getattr(node, "decorator_list", ()) if ast.unparse(each) == "abstractmethod"]
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "__name__ == '__main__'"}:
            parts.append(node)
    return [((each.lineno, each.col_offset), (each.end_lineno, each.end_col_offset)) for each in parts if each]


def mutants(module: str) -> Iterator[Mutant]:
    """Every mutant of a module; one for all replacements of an operator at a place."""
    from cosmic_ray.ast import ast_nodes, get_ast

    source = (ROOT / module).read_text(encoding="utf-8")
    lines, silent = source.split("\n"), silent_spans(source)
    nodes = list(ast_nodes(get_ast(source)))
    places: dict[tuple[str, Span], list[tuple[str, int]]] = {}
    for name, operator in operators().items():
        positions = [position for node in nodes for position in operator.mutation_positions(node)]
        for occurrence, (start, end) in enumerate(positions):
            if not any(low <= start and end <= high for low, high in silent):
                # Numbers are replaced by two others; both are worth a try.
                family = f"{name}{occurrence}" if name == "NumberReplacer" else re.sub(r"_.*", "", name)
                places.setdefault((family, (start, end)), []).append((name, occurrence))
    seen: Counter[str] = Counter()
    for (family, (start, _)), choices in places.items():
        text = lines[start[0] - 1]
        column = start[1] - (len(text) - len(text.lstrip()))
        place = "\0".join((module, re.sub(r"[0-9]+$", "", family), text.strip(), str(column)))
        seen[place] += 1
        digest = hashlib.sha256(f"{place}\0{seen[place]}".encode())
        name, occurrence = choices[int(digest.hexdigest()[-8:], 16) % len(choices)]
        yield Mutant(module, name, occurrence, start[0], digest.hexdigest())


def mutated(mutant: Mutant) -> str | None:
    """The module's text with the change; None where cosmic-ray cannot make it, or it is no Python."""
    from cosmic_ray.mutating import mutate_code

    source = (ROOT / mutant.module).read_text(encoding="utf-8")
    try:
        text: str | None = mutate_code(source, operators()[mutant.operator], mutant.occurrence)
        if text is None or ast.dump(ast.parse(text)) == ast.dump(ast.parse(source)):
            return None
    except (AttributeError, SyntaxError):
        # Its exception replacer expects plain names, and a parenthesis may be missing where a minus takes one away.
        return None
    return text


def difference(source: str, mutated: str) -> tuple[str, str]:
    """The lines of both that differ."""
    old, new = source.split("\n"), mutated.split("\n")
    first = next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    same_end = 0
    while old[-1 - same_end] == new[-1 - same_end] and same_end < min(len(old), len(new)) - first - 1:
        same_end += 1
    before = old[first : len(old) - same_end][:LINES]
    after = new[first : len(new) - same_end][:LINES]
    return "\n".join(line.strip() for line in before), "\n".join(line.strip() for line in after)


@dataclass(frozen=True)
class Change:
    """A mutant that can be tried."""

    mutant: Mutant
    text: str
    before: str
    after: str

    @classmethod
    def of(cls, mutant: Mutant) -> Change | None:
        """The change of a mutant, where there is one."""
        text = mutated(mutant)
        if text is None:
            return None
        source = (ROOT / mutant.module).read_text(encoding="utf-8")
        return cls(mutant, text, *difference(source, text))

    def is_equivalent(self, known: Iterable[Mapping[str, str]]) -> bool:
        """Whether equivalent.yaml says that this change changes nothing.

        An entry names a change by `module`, `before` and `after` (without `after`: every change of that text), or what
        every such change takes away by `lost`.
        """
        change = {"module": self.mutant.module, "before": self.before, "after": self.after}
        return any(
            entry["lost"] in self.before and entry["lost"] not in self.after
            if "lost" in entry
            else all(entry.get(key, value) == value for key, value in change.items())
            for entry in known
        )


class Copies:
    """Copies of the repository, one for each mutant at a time."""

    def __init__(self, jobs: int) -> None:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True,
            check=True,
        ).stdout.splitlines()  # fmt: skip
        self.free: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copy = WORK / f"copy-{number}"
            shutil.rmtree(copy, ignore_errors=True)
            for name in listed:
                if (ROOT / name).is_file():
                    (copy / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / name, copy / name)
            subprocess.run(["git", "init", "--quiet"], cwd=copy, check=True)
            self.free.put(copy)

    def tried(self, module: str, mutated: str | None, limit: float) -> tuple[str, float, str]:
        """`survived`, `killed` or `timeout`, the seconds, and the end of what the tests printed."""
        copy = self.free.get()
        path = copy / module
        original = path.read_bytes()
        try:
            if mutated is not None:
                path.write_text(mutated, encoding="utf-8")
            return run_tests(copy, TESTS[module], limit)
        finally:
            path.write_bytes(original)
            self.free.put(copy)


def run_tests(copy: Path, tests: Sequence[str], limit: float) -> tuple[str, float, str]:
    """Fork, and run the tests in the copy until one fails."""
    output, started = copy.with_suffix(".out"), time.monotonic()
    process = os.fork()
    if process == 0:
        try:
            os._exit(child(copy, tests, output))
        except BaseException:
            traceback.print_exc()
            os._exit(NOT_RUN)
    status = None
    while status is None and time.monotonic() - started < limit:
        finished, code = os.waitpid(process, os.WNOHANG)
        if finished:
            status = os.waitstatus_to_exitcode(code)
        else:
            time.sleep(0.05)
    # Tests may leave processes behind when the code under them is wrong.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    if status is None:
        os.waitpid(process, 0)
    if status == NOT_RUN:
        sys.exit(f"pytest did not run:\n{output.read_text(errors='replace')}")
    verdict = "timeout" if status is None else "survived" if status == 0 else "killed"
    return verdict, time.monotonic() - started, output.read_text(errors="replace")[-2000:]


def child(copy: Path, tests: Sequence[str], output: Path) -> int:
    """Run pytest here; returns its exit status."""
    import pytest

    os.setsid()
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    sys.path[:] = [str(copy), *(entry for entry in sys.path if entry not in {str(HERE), str(ROOT), ""})]
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, target in ((nothing, 0), (descriptor, 1), (descriptor, 2)):
        os.dup2(number, target)
    files = [str(Path("tests") / name) for name in tests]
    order = SlowLast(copy.with_name("durations.json"))
    status = int(
        pytest.main(
            ["-x", "-q", "-n", "0", "--hypothesis-profile=mutants", "-p", "no:cacheprovider", "--no-header", *files],
            [order],
        )
    )
    sys.stdout.flush()
    return status


class SlowLast:
    """A pytest plugin: tests that took a second or more when they last passed run last, the slowest at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: dict[str, float] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: max(1.0, self.seconds.get(item.nodeid, 0.0)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.seconds[report.nodeid] = report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == 0:
            temporary = self.path.with_suffix(f".{os.getpid()}")
            temporary.write_text(json.dumps(self.seconds), encoding="utf-8")
            temporary.replace(self.path)


def state_of(module: str) -> str:
    """The hash of the module and of its tests: a verdict holds for these."""
    files = [ROOT / module, *(ROOT / "tests" / name.split("::")[0] for name in TESTS[module])]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]


def report(verdicts: Sequence[tuple[Change, str]], left_out: int) -> str:
    """A table by module, sums for both packages, and the survivors."""
    rows: dict[str, list[int]] = {}
    for change, verdict in verdicts:
        module = change.mutant.module
        for name in (module, f"{module.split('/')[0]} in all"):
            row = rows.setdefault(name, [0, 0])
            row[0] += 1
            row[1] += verdict != "survived"
    lines = ["| module | mutants | killed | share |", "|---|---|---|---|"]
    for name, (number, killed) in sorted(rows.items(), key=lambda item: (" " in item[0], item[0])):
        lines.append(f"| {name} | {number} | {killed} | {killed / number:.0%} |")
    lines += ["", f"Left out as equivalent: {left_out}.", "", "Survivors:", ""]
    for change, verdict in sorted(verdicts, key=lambda item: (item[0].mutant.module, item[0].mutant.line)):
        if verdict == "survived":
            changed = f"{change.before} -> {change.after}".replace("\n", " / ")
            lines.append(f"- {change.mutant.module}:{change.mutant.line} {change.mutant.operator}: {changed}")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="try the sample's mutants of these alone")
    parser.add_argument("--sample", type=int, default=600, help="mutants to try; 0: all")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--again", action="store_true", help="forget the verdicts of earlier runs")
    return parser.parse_args()


def main() -> int:
    """Draw the sample, try every mutant, print the report."""
    asked = arguments()
    WORK.mkdir(parents=True, exist_ok=True)
    kept = WORK / "verdicts.jsonl"
    if asked.again:
        kept.unlink(missing_ok=True)
    known = yaml.safe_load((HERE / "equivalent.yaml").read_text(encoding="utf-8")) or []
    drawn = sorted((mutant for module in TESTS for mutant in mutants(module)), key=lambda mutant: mutant.key)
    chosen = [mutant for mutant in drawn[: asked.sample or None] if mutant.module in (asked.modules or TESTS)]
    changes = [change for mutant in chosen if (change := Change.of(mutant)) is not None]
    sample = [change for change in changes if not change.is_equivalent(known)]
    left_out = len(changes) - len(sample)
    print(f"{len(drawn):,} mutants; {len(sample):,} to try, {left_out} left out as equivalent", flush=True)
    states = {module: state_of(module) for module in TESTS}
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    records = {(line["key"], line["state"]): line for line in map(json.loads, lines)}
    waiting = [change for change in sample if (change.mutant.key, states[change.mutant.module]) not in records]
    seconds = {module: records[UNCHANGED, state]["seconds"] for module, state in states.items()
               if (UNCHANGED, state) in records}  # fmt: skip
    with kept.open("a", encoding="utf-8") as file:
        for facts in tried(waiting, asked.jobs, seconds):
            record = {"state": states[facts["module"]], **facts}
            records[record["key"], record["state"]] = record
            file.write(json.dumps(record) + "\n")
            file.flush()
    verdicts = {identity: record["verdict"] for identity, record in records.items()}
    text = report(
        [(mutation, verdicts[mutation.mutant.key, states[mutation.mutant.module]]) for mutation in sample], left_out
    )
    (WORK / "report.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


def tried(changes: Sequence[Change], jobs: int, known: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """Try the changes, some at a time; yield the facts of each: verdict, seconds, mutant.

    The unchanged code comes first, but for the modules whose seconds are `known`: its time gives the time limits.
    Exits where the tests of a module fail without a change.
    """
    # Threads gain nothing on tiny models; torch reads this when it is imported.
    os.environ["OMP_NUM_THREADS"] = "1"
    # What the tests import and no mutant changes. Nothing is computed in this process, so that forks of it are safe.
    for name in ("pyarrow", "pytest", "sacrebleu", "torch"):
        importlib.import_module(name)
    copies = Copies(jobs)
    modules = sorted({change.mutant.module for change in changes} - set(known))
    limits = {module: limit(seconds) for module, seconds in known.items()}
    with ThreadPoolExecutor(jobs) as pool:
        unchanged = pool.map(lambda module: copies.tried(module, None, 1800), modules)
        for module, (verdict, seconds, output) in zip(modules, unchanged, strict=True):
            if verdict != "survived":
                sys.exit(f"{module}: its tests fail without a change: mend them first\n{output}")
            limits[module] = limit(seconds)
            print(f"{module}: {seconds:.1f} s unchanged", flush=True)
            yield {"verdict": verdict, "seconds": round(seconds, 1), "module": module, "key": UNCHANGED}
        started = time.monotonic()
        answers = pool.map(
            lambda each: copies.tried(each.mutant.module, each.text, limits[each.mutant.module]), changes
        )
        for number, (change, (verdict, seconds, _)) in enumerate(zip(changes, answers, strict=True), start=1):
            left = (time.monotonic() - started) / number * (len(changes) - number) / 60
            print(
                f"{number}/{len(changes)} {change.mutant.module}:{change.mutant.line} {verdict}, {left:.0f} min left",
                flush=True,
            )
            yield {"verdict": verdict, "seconds": round(seconds, 1), **asdict(change.mutant)}


def limit(seconds: float) -> float:
    """The seconds that a mutant may take where the unchanged code takes so many."""
    return 60 + 5 * seconds


if __name__ == "__main__":
    sys.exit(main())
