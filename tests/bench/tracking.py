"""What tracking costs a training: `python -m tests.bench.tracking [--minutes 2] [--json]`.

Reports to a stage's tracker what a training does (a record a second, every ten with a validation), for some minutes,
and counts the processor seconds of the stage's own calls and of the process that publishes beside it, into a store that
an earlier stage has made. Costs that occur once (imports, opening the store) are reported apart from those of each
further hour.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import yaml

from tests.bench.conditions import announce, conditions

MEMBER = {"archive": "a", "member": "a.en", "path": None}
ARCHIVE = {
    "name": "a", "urls": ["https://example.org/a.tgz"], "bytes": None, "sha256": "0" * 64, "md5": None, "licence": "",
    "source": "",
}  # fmt: skip
TEXT = {"name": "text", "source": MEMBER, "target": MEMBER}
CONFIGURATION = {
    "run": {"row": "base", "pair": "en-de", "corpus": "wmt14", "seed": 1},
    "data": {"source": "en", "target": "de", "train": [TEXT], "valid": TEXT, "test": TEXT, "archives": [ARCHIVE]},
    "model": {f"key{number}": number for number in range(60)},
}
RECORD = (
    "loss", "nll", "ppl", "gradient_norm", "skipped", "padded", "tokens", "learning_rate", "tokens_per_second",
    "flops_per_second", "utilisation", "padding", "seconds",
)  # fmt: skip


def beside() -> float:
    """Processor seconds of the processes beside this one that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def measure(seconds: float) -> dict[str, float]:
    """Processor seconds of a tracked stage of `seconds`; in a folder of its own."""
    from pipeline.runs import stage_tracker

    with stage_tracker.open_run("tokenize") as tracker:  # Makes the store.
        tracker.metrics({"pairs": 1})
    earlier = beside()
    own, update = 0.0, 0
    start = time.monotonic()
    before = time.process_time()
    with stage_tracker.open_run("train") as tracker:
        own += time.process_time() - before
        while time.monotonic() - start < seconds:
            time.sleep(1)
            update += 1
            before = time.process_time()
            tracker.metrics(dict.fromkeys(RECORD, update / 7), update)
            if update % 10 == 0:
                tracker.metrics({"valid_loss": 1 / update, "valid_ppl": 1 + 1 / update}, update)
            own += time.process_time() - before
    return {"stage": own, "beside": beside() - earlier, "updates": update}


def isolated(seconds: float) -> dict[str, float]:
    """`measure` in a process, a folder and a store of their own."""
    with tempfile.TemporaryDirectory() as folder:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.environ |= {"WMT_TRACKING_PATIENCE": "300", "WMT_STATE": f"{folder}/work", "PYTHONPATH": str(Path.cwd())}
            os.environ.pop("MLFLOW_TRACKING_URI", None)
            os.chdir(folder)
            Path("results").mkdir()
            Path("results/config.yaml").write_text(yaml.safe_dump(CONFIGURATION))
            os.write(write, json.dumps(measure(seconds)).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as file:
            content = file.read()
        os.waitpid(child, 0)
        return dict(json.loads(content))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tracking", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="length of the longer of the two runs")
    parser.add_argument("--json", action="store_true", help="print numbers for programs")
    arguments = parser.parse_args()
    announce(parser.prog)
    measured_on = conditions()
    cores = measured_on["cores"]
    longer = 60 * arguments.minutes
    short, long = isolated(longer / 4), isolated(longer)
    total = {name: run["stage"] + run["beside"] for name, run in (("short", short), ("long", long))}
    slope = max(0.0, (total["long"] - total["short"]) / (longer - longer / 4))
    once = max(0.0, total["long"] - slope * longer)
    result = {
        **measured_on,
        "stage_ms_per_record": 1000 * long["stage"] / long["updates"],
        "processor_seconds_once": once,
        "processor_seconds_per_hour": 3600 * slope,
        "share_of_185_s": (once + slope * 185) / (185 * cores),
        "share_of_12_h": (once + slope * 43200) / (43200 * cores),
    }
    if arguments.json:
        json.dump(result, sys.stdout, indent=2)
        print()
        return
    for name, value in result.items():
        if name not in measured_on:
            print(f"{name:28} {value:.3%}" if name.startswith("share") else f"{name:28} {value:.3g}")


if __name__ == "__main__":
    main()
