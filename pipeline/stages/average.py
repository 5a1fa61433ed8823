"""Average the last checkpoints (section 6.1) and write complete model folders of the average and of the last weights.

A training that ended early, by overrides that shorten it, may leave fewer checkpoints than
`averaging.last`. Then those are averaged; without any, the last weights replace the average.
"""

from __future__ import annotations

from nmt.common import tensors
from nmt.common.files import write_json
from nmt.inference import model_folder
from nmt.inference.settings import SearchSettings
from nmt.model_settings import ModelSettings
from nmt.text.settings import PreparationSettings
from nmt.training import checkpoint
from pipeline.config.corpora import RunSettings, sides
from pipeline.config.paths import AVERAGE, AVERAGING, CHECKPOINTS, LAST, SUBWORDS
from pipeline.config.sections import AveragingSettings, load_section


def run() -> None:
    """Write models/average (Table 2's protocol), models/last (Table 3's) and results/averaging.json."""
    settings = load_section("averaging", AveragingSettings)
    asked = load_section("run", RunSettings)
    tokenizer = load_section("preparation", PreparationSettings).tokenizer
    model, search = load_section("model", ModelSettings), load_section("search", SearchSettings)
    chosen = checkpoint.checkpoints(CHECKPOINTS)[-settings.last :]
    last = tensors.load_tensors(CHECKPOINTS / "last.safetensors")
    updates = ", ".join(f"{checkpoint.update_of(path):,}" for path in chosen)
    averaged = f"mean of updates {updates}" if chosen else "last update"
    if len(chosen) < settings.last:
        print(
            f"average: averaging.last is {settings.last}, but training left {len(chosen)} (a checkpoint every "
            f"training.checkpoint_every updates): models/average is the {averaged}"
        )
    source, target = sides(asked.pair)
    own = last.get("own_target_embedding.table")
    average = checkpoint.average(chosen) if chosen else last
    for folder, weights, origin in ((AVERAGE, average, averaged), (LAST, last, "last update")):
        description = model_folder.ModelDescription(
            source=source,
            target=target,
            vocabulary=last["embedding.table"].shape[0],
            target_vocabulary=None if own is None else own.shape[0],
            tokenizer=tokenizer,
            model=model,
            search=search,
            origin={**asked.model_dump(), "weights": origin},
        )
        model_folder.save_model(folder, weights, description, SUBWORDS)
    record = {"requested": settings.last, "checkpoints": len(chosen), "updates": updates, "weights": averaged}
    write_json(AVERAGING, record)
