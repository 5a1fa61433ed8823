"""What a finished training hands on: checkpoints, summary, tables, translated examples, chain of hashes."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from nmt import hardware
from nmt.common.files import link_or_copy, read_yaml, write_json, write_text, writing
from nmt.common.tensors import WEIGHTS
from nmt.training import checkpoint, history
from nmt.training.settings import Job
from nmt.training.state import read_state
from pipeline.config import paths
from pipeline.trainings.identity import data_hashes

COLUMNS = (
    *("update", "loss", "nll", "ppl", "learning_rate", "gradient_norm"),
    *("tokens_per_second", "flops_per_second", "utilisation", "padding", "seconds"),
)
"""Columns of results/training.csv: a row per logging interval."""
VALIDATION_COLUMNS = ("update", "valid_loss", "valid_ppl", "seconds")  # columns of results/validation.csv


def write_outputs(folder: Path, root: Path) -> None:
    """Write the outputs of the stage `train` into the repository in `root`, from a finished training's folder."""
    with writing(root / paths.CHECKPOINTS, folder=True) as temporary:
        for path in checkpoint.checkpoints(folder / "checkpoints"):
            link_or_copy(path, temporary / path.name)
        last = checkpoint.states(folder)[-1]
        link_or_copy(last / WEIGHTS, temporary / "last.safetensors")
    job = read_yaml(folder / "job.yaml")
    # done.json says the same, but has no hash.
    summary = history.summary(Job.model_validate(job), read_state(last))
    # The speed of an unknown device is measured, which is possible only for the device of this machine.
    here, used = summary["device"], summary["device_seconds"]
    devices = {name: name if name == "cpu" or hardware.data_sheet(name) else here for name in used}
    sustained = {name: hardware.sustained(device) for name, device in devices.items()}
    write_json(root / paths.TRAINING, {**summary, "flops_sustained": sustained})
    records = history.read_history(folder / history.HISTORY)
    write_curves(records, root)
    kept = ("update", "outputs", "sample")
    examples = ({key: record[key] for key in kept if key in record} for record in records if "outputs" in record)
    write_text(root / paths.VALIDATION_OUTPUTS, "".join(json.dumps(example) + "\n" for example in examples))
    data = data_hashes(Path(job.pop("corpus")))  # In other copies of the repository it has another path.
    decided_by = {"state": folder.name, "job": job, "data": data, "code": folder.name.split("-")[1]}
    write_json(root / paths.CHAIN, {**decided_by, "links": history.read_history(folder / history.CHAIN)})


def write_curves(records: Sequence[Mapping[str, float]], root: Path) -> None:
    """Write the tables of logging intervals and of validations, for DVC's plots."""
    tables = (paths.CURVES, COLUMNS, "loss"), (paths.VALIDATION, VALIDATION_COLUMNS, "valid_loss")
    for path, columns, key in tables:
        rows = [record for record in records if key in record]
        # Without columns that some records lack: DVC plots an empty cell as 0.
        complete = [column for column in columns if all(column in row for row in rows)]
        with writing(root / path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, complete, extrasaction="ignore", lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
