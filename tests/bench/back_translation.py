"""What back-translation gains: BLEU of trainings on few pairs, with and without text of the target language alone.

    python -m tests.bench.back_translation --train EN DE --valid EN DE --test EN DE [--folder DIR]
        [--seeds 1 3] [--precision float32]

The first half of the pairs is training text; of the second half only the German sides are, which a model of the other
direction, trained on the first half, translates. For every seed two models are trained with the settings of
`tests.bench.fine_tuning`: on the first half alone, and on both. Models in DIR are kept and used, and an interrupted
training resumes.
"""

import argparse
from pathlib import Path

import torch

from nmt import Translator
from tests.bench.conditions import announce
from tests.bench.fine_tuning import MODEL, SEEDS, TRAINING, Pairs, read, report, trained


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("train", "valid", "test"):
        parser.add_argument(f"--{name}", nargs=2, type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("work/back_translation"))
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--precision", default=TRAINING["precision"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    announce("back_translation")
    (english, german), valid, test = (read(getattr(given, name)) for name in ("train", "valid", "test"))
    count = len(german) // 2
    first, monolingual = (english[:count], german[:count]), german[count:]
    training, models = TRAINING | {"precision": given.precision}, {}

    def model(
        name: str, pairs: Pairs, valid: Pairs, seed: int, languages: tuple[str, str] = ("en", "de")
    ) -> Translator:
        return trained(given.folder / name, pairs, valid, seed, training, model=MODEL, languages=languages)

    reverse = model("reverse", (first[1], first[0]), (valid[1], valid[0]), 1, ("de", "en"))
    both = [*first[0], *reverse.translate(monolingual)], [*first[1], *monolingual]
    for seed in given.seeds:
        models[f"alone {seed}"] = model(f"alone-{seed}", first, valid, seed)
        models[f"more {seed}"] = model(f"more-{seed}", both, valid, seed)
    report(models, test, "more", given.seeds)


if __name__ == "__main__":
    main()
