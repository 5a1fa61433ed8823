"""BLEU and chrF of what a training wrote for a sample of the validation set, after every validation."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from nmt.errors import InputError, tell
from nmt.task import TRANSLATION, task_of
from nmt.text.settings import PreparationSettings
from pipeline.config.corpora import DataSettings
from pipeline.config.paths import SUBWORDS, raw
from pipeline.config.sections import ScoringSettings, load_section

BLEU, CHRF = "valid_bleu_greedy", "valid_chrf_greedy"
"""Keys of the scores. `valid_bleu` and `valid_chrf` are those of the whole set, by beam search, at the end."""


@cache
def report(problem: str) -> None:
    """Print why there are no scores, once."""
    tell(f"tracking: no BLEU of the validation sample: {problem}")


def scored(records: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, float]]:
    """Yield the scores of each record with a `sample`: greedy translations as ids, by their line in the validation set.

    There are none of trees, and none where a library that makes or scores text, or the text itself, is missing.
    """
    sampled = [record for record in records if record.get("sample")]
    try:
        data = load_section("data", DataSettings) if sampled else None
        if data is None or task_of(data.target) is not TRANSLATION:
            return
        # Imported here: they need libraries of text, which take time, too.
        from nmt.codec import Codec
        from nmt.evaluation import bleu
        from nmt.text.parallel_text import read_lines

        tokenizer = load_section("preparation", PreparationSettings).tokenizer
        codec = Codec(SUBWORDS, data.source, data.target, tokenizer)
        tokenize = load_section("scoring", ScoringSettings).tokenize
        source, target = (list(read_lines(raw("valid", data.valid.name, code))) for code in (data.source, data.target))
        for record in sampled:
            ids = {int(line): written for line, written in record["sample"].items()}
            texts = (
                [codec.write(written, source[line]) for line, written in ids.items()],
                [target[line] for line in ids],
            )
            scores = {BLEU: bleu.sacrebleu(*texts, data.target, tokenize)[0], CHRF: bleu.chrf(*texts)[0]}
            yield {"update": record["update"], "seconds": record.get("seconds", 0.0), **scores}
    except (ImportError, OSError, IndexError, InputError) as error:  # IndexError: the text is another one.
        report(str(error))
