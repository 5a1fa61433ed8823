"""What tracking costs a training: `python -m tests.bench.tracking [--minutes 2] [--json]`.

A history grows as that of a training does (a record a second, every ten a validation) while `follow` sends it to a
local store. All processor seconds of the process are counted: the thread that sends, and MLflow's, which watches the
load.
Costs that occur once (imports, opening the store) are reported apart from those of each further hour.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from tests.bench.conditions import announce, conditions

RUN = {"row": "base", "pair": "en-de", "corpus": "wmt14", "seed": 1}
RECORD = (
    "loss", "nll", "ppl", "gradient_norm", "skipped", "tokens", "learning_rate", "tokens_per_second",
    "flops_per_second", "utilisation", "padding",
)  # fmt: skip


def measure(seconds: float) -> float:
    """Processor seconds of this process while it follows a training of `seconds` in this folder."""
    from pipeline.tracking.follow import follow

    state = Path("work/train/state")
    state.mkdir(parents=True)
    begin, before, update = time.monotonic(), time.process_time(), 0
    with follow(state), (state / "history.jsonl").open("a", buffering=1) as history:
        while time.monotonic() - begin < seconds:
            time.sleep(1)
            update += 1
            content = {"update": update, "seconds": float(update), **dict.fromkeys(RECORD, update / 7)}
            history.write(json.dumps(content) + "\n")
            if update % 10 == 0:
                content = {"update": update, "seconds": float(update), "valid_loss": 1 / update, "valid_ppl": 1.0}
                history.write(json.dumps(content) + "\n")
    return time.process_time() - before


def isolated(seconds: float) -> float:
    """`measure` in a process, a folder and a store of their own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "results").mkdir()
        Path(folder, "results/config.yaml").write_text(yaml.safe_dump({"run": RUN}))
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "WMT_"))}
        command = [sys.executable, "-c", f"from tests.bench.tracking import measure\nprint(measure({seconds}))"]
        environment["PYTHONPATH"] = str(Path.cwd())
        return float(subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE).stdout)


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
    slope = max(0.0, (long - short) / (longer - longer / 4))
    once = max(0.0, long - slope * longer)
    result = {
        **measured_on,
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
