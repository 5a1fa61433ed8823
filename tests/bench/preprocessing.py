"""How fast, and in how much memory, WMT-like text goes from raw lines to bins: python -m tests.bench.preprocessing

Text of `--pairs` pairs is made (wmt_like.py) and put through the production stages tokenize, learn_subwords and
binarize, each in a process of its own, on one core and on two; learning is done once, on two. The plain pipe
`sacremoses normalize tokenize | subword-nmt apply-bpe` does the same work on both cores. The three take turns.
"""

import argparse
import hashlib
import importlib
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from nmt.text import subwords
from nmt.text.moses import Moses
from nmt.text.settings import SubwordSettings, TokenizerSettings
from pipeline.config import rows
from pipeline.config.paths import TOKENIZED
from pipeline.config.sections import load_section
from pipeline.data.blocks import executor
from pipeline.stages import learn_subwords
from tests.bench import wmt_like
from tests.bench.conditions import announce, conditions, spread

ROOT = Path(__file__).resolve().parents[2]
HELD_OUT = 3000  # pairs of the validation and of the test set, as newstest's
PIPED = 200_000  # pairs that the pipe is measured on, at most: its rate does not depend on their number


def configuration(merges: int) -> dict[str, Any]:
    """What the stages read: Moses with its normaliser, as the pipe has it, the paper's code's limits, base's bins."""

    def text(name: str) -> dict[str, Any]:
        member = {"path": name, "sha256": "0" * 64}
        return {"name": name, "source": member, "target": member}

    sets = {"train": [text("like")], "valid": text("dev"), "test": text("exam")}
    packages = ("sacremoses", "subword_nmt", "sentencepiece", "sacrebleu")
    return {
        "data": {"source": "en", "target": "de", "archives": [], **sets},
        "preparation": {
            "tokenizer": {"tokenizer": "moses", "normalize_punctuation": True, "aggressive_hyphens": False},
            "filters": {"min_tokens": 1, "max_tokens": 250, "max_ratio": 9.0, "drop_identical": False},
        },
        "subwords": {"kind": "bpe", "merges": merges, "vocabulary": None, "multiple_of": 64},
        "training": rows.settings("base", "en-de")["training"],  # learn_subwords asks what it starts from
        "binning": {"max_length": 256, "growth": 1.1},
        "versions": {package: version(package.replace("_", "-")) for package in packages},
    }


def peak_memory() -> int:
    """The most bytes that this process, or any of its own that has ended, ever held in memory."""
    # Not RUSAGE_SELF: a new process starts there with what its parent had taken.
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert match
    return max(int(match[1]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) * 1024


def cpu_seconds() -> float:
    """Processor time of this process and of its own that have ended: a busy machine does not change it much."""
    used = [resource.getrusage(kind) for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def run_stage(name: str) -> dict[str, Any]:
    """Run a stage in this process as its command does; seconds and peak memory."""
    started = time.perf_counter()
    result: dict[str, Any] = {}
    if name in ("count", "learn"):
        paths = [TOKENIZED / f"train.{language}" for language in ("en", "de")]
        with executor(sum(path.stat().st_size for path in paths)) as pool:
            counts = sum((learn_subwords.count_words(path, pool) for path in paths), Counter[str]())
        result["words"] = len(counts)
        if name == "learn":
            started = time.perf_counter()
            learned = subwords.learn(counts, load_section("subwords", SubwordSettings))
            learned.save(learn_subwords.SUBWORDS)
            result["subwords"] = learned.used_rows
    else:
        importlib.import_module(f"pipeline.stages.{name}").run()
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "cpu_seconds": cpu_seconds(), "peak_bytes": peak_memory(), **result}


def start(command: list[str], folder: Path, cores: list[int], **options: Any) -> subprocess.Popen[bytes]:
    """Start a command on some cores: the stages take as many workers as they have cores."""
    words = ["taskset", "-c", ",".join(map(str, cores)), *command]
    return subprocess.Popen(words, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, **options)


def in_child(name: str, folder: Path, cores: list[int]) -> dict[str, Any]:
    """Run a stage in a new process on some cores."""
    command = [sys.executable, "-m", "tests.bench.preprocessing", "--stage", name]
    process = start(command, folder, cores, stdout=subprocess.PIPE)
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the stage {name} failed")
    measured: dict[str, Any] = json.loads(output.decode().rsplit("\n", 2)[-2])
    print(f"{name} on {len(cores)} cores: {measured['seconds']:.1f} s", file=sys.stderr)
    return measured


def digests(folder: Path) -> dict[str, str]:
    """The checksums of a stage's output."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def curve(folder: Path, language: wmt_like.Language, pairs: int) -> list[dict[str, float]]:
    """Word types by tokens, beside Heaps' law, at every doubling from 10,000 tokens on."""
    plain = TokenizerSettings(tokenizer="moses", normalize_punctuation=False, aggressive_hyphens=False)
    moses, seen, tokens, points = Moses(language.code, plain), set[str](), 0, []
    with (folder / f"data/raw/train.like.{language.code}").open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            words = moses.tokenize(line.removesuffix("\n")).split(" ")
            seen.update(words)
            tokens += len(words)
            if tokens >= 10_000 * 2 ** len(points) or number == pairs:
                points.append({"tokens": tokens, "types": len(seen), "over_law": len(seen) / language.types(tokens)})
    return points


def piped(folder: Path, pairs: int, cores: list[int]) -> float:
    """Seconds that the plain pipe takes for so many pairs, one pipe a side, both at the same time."""
    pipes, bin_ = [], Path(sys.executable).parent
    started = time.perf_counter()
    for language in ("en", "de"):
        script = (
            f"set -o pipefail; head -n {pairs} data/raw/train.like.{language} "
            f"| {bin_}/sacremoses -q -l {language} normalize tokenize "
            f"| {bin_}/subword-nmt apply-bpe -c data/subwords/codes.bpe > piped.{language}"
        )
        pipes.append(start(["bash", "-c", script], folder, cores))
    if any(pipe.wait() for pipe in pipes):
        raise RuntimeError("the pipe of sacremoses and subword-nmt failed")
    seconds = time.perf_counter() - started
    for language in ("en", "de"):
        with (folder / f"piped.{language}").open("rb") as file:
            if sum(1 for _ in file) != pairs:
                raise RuntimeError("the pipe of sacremoses and subword-nmt lost lines")
    return seconds


def prepare(folder: Path, pairs: int, merges: int, held_out: int = HELD_OUT) -> float:
    """Write the text and the configuration; the seconds that took. `held_out`: pairs of validation and test each."""
    started = time.perf_counter()
    for name in ("data/raw", "results"):
        (folder / name).mkdir(parents=True)
    (folder / "results/config.yaml").write_text(yaml.safe_dump(configuration(merges)), encoding="utf-8")
    with executor(1 << 30) as pool:
        for seed, (name, count) in enumerate(
            {"train.like": pairs, "valid.dev": held_out, "test.exam": held_out}.items()
        ):
            wmt_like.write(str(folder / "data/raw" / name), count, seed, pool)
    return time.perf_counter() - started


def stages_of(folder: Path, cores: list[int]) -> dict[str, dict[str, Any]]:
    """Run what is measured on some cores: each stage but the learning."""
    return {name: in_child(name, folder, cores) for name in ("tokenize", "count", "binarize")}


def measure(folder: Path, pairs: int, merges: int, pipe: int, rounds: int) -> dict[str, Any]:
    """Everything, for one size: one worker, two and the pipe in turn."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    result: dict[str, Any] = {**conditions(), "pairs": pairs, "merges": merges}
    result["generated_seconds"] = prepare(folder, pairs, merges)
    in_child("tokenize", folder, cores)
    result["learn"] = in_child("learn", folder, cores)
    counts, made = range(1, len(cores) + 1), list[dict[str, str]]()
    rates: dict[int, list[float]] = {count: [] for count in counts}
    of_pipe: list[float] = []
    for _ in range(rounds):
        for count in counts:
            stages = stages_of(folder, cores[:count])
            made.append(digests(folder / "data/tokenized") | digests(folder / "data/binned"))
            for stage in stages.values():
                stage["pairs_a_second"] = pairs / stage["seconds"]
            rates[count].append(pairs / sum(stage["seconds"] for stage in stages.values()))
            spent = sum(stage["cpu_seconds"] for stage in stages.values())
            result[f"workers_{count}"] = {
                **stages, "pairs_a_second": spread(rates[count]), "pairs_a_cpu_second": pairs / spent
            }  # fmt: skip
        if pipe:
            of_pipe.append(min(pairs, pipe) / piped(folder, min(pairs, pipe), cores))
    best = max(counts)
    result["speedup"] = statistics.median(rates[best]) / statistics.median(rates[1])
    result["same_bytes"] = all(one == made[0] for one in made)
    result["peak_bytes"] = max(stage["peak_bytes"] for stage in (*stages.values(), result["learn"]))
    result["peak_bytes_without_learning"] = max(stage["peak_bytes"] for stage in stages.values())
    if pipe:
        result["pipe"] = {"pairs": min(pairs, pipe), "pairs_a_second": spread(of_pipe)}
        # The pipe neither counts nor filters nor sorts into bins.
        result["over_pipe"] = statistics.median(rates[best]) / statistics.median(of_pipe)
    for language in (wmt_like.ENGLISH, wmt_like.GERMAN):
        result[f"types_{language.code}"] = curve(folder, language, pairs)
    return result


def main(arguments: list[str] | None = None) -> int:
    """Print the measurements; the exit status is 1 where outputs differ between numbers of workers."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.preprocessing", description=__doc__)
    parser.add_argument("--pairs", type=int, default=50_000)
    parser.add_argument("--merges", type=int, default=37_000)
    parser.add_argument("--pipe", type=int, default=PIPED, help="pairs that the pipe is measured on; 0: none")
    parser.add_argument("--rounds", type=int, default=2, help="times that one worker, two and the pipe take turns")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--stage", choices=("tokenize", "count", "learn", "binarize"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.stage:
        print(json.dumps(run_stage(options.stage)))
        return 0
    announce(parser.prog)
    with tempfile.TemporaryDirectory(prefix="preprocessing-") as folder:
        result = measure(Path(folder), options.pairs, options.merges, options.pipe, options.rounds)
    print(json.dumps(result, indent=None if options.json else 2))
    return 0 if result["same_bytes"] else 1


if __name__ == "__main__":
    sys.exit(main())
