"""Average the last checkpoints (section 6.1) and make complete model folders of the average and of the last weights."""

from __future__ import annotations

from pathlib import Path

from nmt.config import AveragingSettings, InputError, ModelSettings, SearchSettings
from pipeline import stage
from pipeline.config import PreparationSettings, RunSettings, load_section
from pipeline.stage import Tracker

BINNED_STATS = Path("data/binned/stats.json")
CHECKPOINTS = Path("models/checkpoints")
SUBWORDS = Path("data/subwords")
AVERAGE, LAST = Path("models/average"), Path("models/last")


def run(tracker: Tracker) -> None:
    """Write models/average (Table 2's protocol) and models/last (Table 3's)."""
    # torch takes a second to import, which `--help` need not wait for.
    from nmt import checkpoint

    settings = load_section("averaging", AveragingSettings)
    asked = load_section("run", RunSettings)
    paths = checkpoint.checkpoints(CHECKPOINTS)
    if len(paths) < settings.last:
        raise InputError(
            f"averaging.last is {settings.last}, but training left {len(paths)} checkpoints: raise training.updates or "
            "lower training.checkpoint_every or averaging.last"
        )
    chosen = paths[-settings.last :]
    last = checkpoint.load_tensors(CHECKPOINTS / "last.safetensors")

    def description(origin: str) -> checkpoint.ModelDescription:
        return checkpoint.ModelDescription(
            source=asked.source,
            target=asked.target,
            vocabulary=last["embedding.table"].shape[0],
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

    updates = ", ".join(f"{checkpoint.update_of(path):,}" for path in chosen)
    checkpoint.save_model(AVERAGE, checkpoint.average(chosen), description(f"mean of updates {updates}"), SUBWORDS)
    checkpoint.save_model(LAST, last, description("last update"), SUBWORDS)
    tracker.tags({"averaged_updates": updates})


if __name__ == "__main__":
    stage.main("average", __doc__, run)
