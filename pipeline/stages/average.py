"""Average checkpoints (section 6.1) and write complete model folders of the average and of the last weights.

They are the last ones or, with `averaging.best`, those with the best validation perplexity. A training that ended
early, by patience or by overrides that shorten it, may leave fewer. Then those are averaged; without any, the last
weights replace the average.
"""

import math
from pathlib import Path

from nmt.common import tensors
from nmt.common.files import write_json
from nmt.inference import model_folder
from nmt.inference.settings import SearchSettings
from nmt.model_settings import ModelSettings
from nmt.text.settings import PreparationSettings
from nmt.training import checkpoint
from pipeline.config.corpora import RunSettings, sides
from pipeline.config.paths import AVERAGE, AVERAGING, CHECKPOINTS, LAST, SUBWORDS, VALIDATION, read_table
from pipeline.config.sections import AveragingSettings, load_section


def best(paths: list[Path], count: int) -> list[Path]:
    """Return the checkpoints of best validation perplexity, oldest first, without those that have none."""
    losses = {int(row["update"]): row["valid_loss"] for row in read_table(VALIDATION)}
    validated = [path for path in paths if math.isfinite(losses.get(checkpoint.update_of(path), math.inf))]
    return sorted(sorted(validated, key=lambda path: losses[checkpoint.update_of(path)])[:count])


def run() -> None:
    """Write models/average (Table 2's protocol), models/last (Table 3's) and results/averaging.json."""
    settings = load_section("averaging", AveragingSettings)
    asked = load_section("run", RunSettings)
    tokenizer = load_section("preparation", PreparationSettings).tokenizer
    model, search = load_section("model", ModelSettings), load_section("search", SearchSettings)
    (key, requested), kept = settings.requested, checkpoint.checkpoints(CHECKPOINTS)
    chosen = kept[-requested:] if settings.best is None else best(kept, requested)
    last = tensors.load_tensors(CHECKPOINTS / "last.safetensors")
    updates = ", ".join(f"{checkpoint.update_of(path):,}" for path in chosen)
    averaged = f"mean of updates {updates}" if chosen else "last update"
    if len(chosen) < requested:
        made = "a checkpoint every training.checkpoint_every updates"
        validated = f"{len(chosen)} with a validation (training.validate_every as it was when they were trained)"
        left = f"{len(chosen)} ({made})" if settings.best is None else validated
        print(f"average: {key} is {requested}, but training left {left}: models/average is the {averaged}")
    source, target = sides(asked.pair)
    target_table = last.get("own_target_embedding.table")
    average = checkpoint.average(chosen) if chosen else last
    for folder, weights, origin in ((AVERAGE, average, averaged), (LAST, last, "last update")):
        description = model_folder.ModelDescription(
            source=source,
            target=target,
            vocabulary=last["embedding.table"].shape[0],
            target_vocabulary=None if target_table is None else target_table.shape[0],
            tokenizer=tokenizer,
            model=model,
            search=search,
            origin={**asked.model_dump(), "weights": origin},
        )
        model_folder.save_model(folder, weights, description, SUBWORDS)
    write_json(AVERAGING, {"checkpoints": len(chosen), "weights": averaged})
