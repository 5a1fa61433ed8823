"""Average the last checkpoints (section 6.1) and make complete model folders of the average and of the last weights.

A training that ended early, by its patience or by overrides that shorten it, may leave fewer checkpoints than
`averaging.last`. Then those are averaged; without any, the last weights take the average's place.
"""

from __future__ import annotations

from pathlib import Path

from nmt.config import AveragingSettings, ModelSettings, SearchSettings
from pipeline import stage
from pipeline.config.settings import PreparationSettings, RunSettings, load_section
from pipeline.stage import Tracker

BINNED_STATS = Path("data/binned/stats.json")
CHECKPOINTS = Path("models/checkpoints")
SUBWORDS = Path("data/subwords")
AVERAGE, LAST = Path("models/average"), Path("models/last")
RECORD = Path("results/averaging.json")


def run(tracker: Tracker) -> None:
    """Write models/average (Table 2's protocol) and models/last (Table 3's)."""
    # torch takes a second to import, which `--help` need not wait for.
    from nmt.common import tensors
    from nmt.inference import model_folder
    from nmt.training import checkpoint

    settings = load_section("averaging", AveragingSettings)
    asked = load_section("run", RunSettings)
    chosen = checkpoint.checkpoints(CHECKPOINTS)[-settings.last :]
    last = tensors.load_tensors(CHECKPOINTS / "last.safetensors")
    updates = ", ".join(f"{checkpoint.update_of(path):,}" for path in chosen)
    averaged = f"mean of updates {updates}" if chosen else "last update"
    if len(chosen) < settings.last:
        print(
            f"average: averaging.last is {settings.last}, but training left {len(chosen)} (a checkpoint every "
            f"training.checkpoint_every updates): models/average is the {averaged}"
        )

    own = last.get("own_target_embedding.table")

    def description(origin: str) -> model_folder.ModelDescription:
        return model_folder.ModelDescription(
            source=asked.source,
            target=asked.target,
            vocabulary=last["embedding.table"].shape[0],
            target_vocabulary=None if own is None else own.shape[0],
            tokenizer=load_section("preparation", PreparationSettings).tokenizer,
            model=load_section("model", ModelSettings),
            search=load_section("search", SearchSettings),
            origin={
                "row": asked.row,
                "pair": asked.pair,
                "corpus": asked.corpus,
                "seed": asked.seed,
                "weights": origin,
            },
        )

    weights = checkpoint.average(chosen) if chosen else last
    model_folder.save_model(AVERAGE, weights, description(averaged), SUBWORDS)
    model_folder.save_model(LAST, last, description("last update"), SUBWORDS)
    stage.write_json(
        RECORD, {"requested": settings.last, "checkpoints": len(chosen), "updates": updates, "weights": averaged}
    )
    tracker.tags({"averaged_updates": updates})
