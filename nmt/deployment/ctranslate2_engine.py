"""CTranslate2 as an engine, for models that `wmt export` made.

Its length penalty is |Y|^alpha, not GNMT's, and its search ends by another rule: no reported score comes from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from nmt.config import InputError, SearchSettings
from nmt.inference.loading import Models
from nmt.inference.search import Hypothesis
from nmt.inference.translator import WORKERS, Engine, Piece

POSITIONS = 1024
"""Positions in the exported table of sinusoids."""
NOTE = (
    "CTranslate2's length penalty is |Y|^alpha, not GNMT's ((5+|Y|)/6)^alpha, and its search ends by another rule: "
    "its translations and scores are not for comparison with the paper's"
)


def import_ctranslate2() -> Any:
    """Return the module ctranslate2; raise InputError if it is not installed."""
    try:
        import ctranslate2
    except ModuleNotFoundError as error:
        raise InputError(
            "CTranslate2 is not installed: `pip install ctranslate2`, or `pip install -e '.[ctranslate2]'`"
        ) from error
    return ctranslate2


class CTranslate2Engine(Engine):
    """An exported model. Raises InputError if `folder` is no exported model, or CTranslate2 is not installed."""

    positions = POSITIONS
    """Learned positions have a table of their own, which the Translator knows."""

    def __init__(self, folder: Path, models: Models) -> None:
        module = import_ctranslate2()
        if not (folder / "model.bin").exists():
            raise InputError(f"{folder} is no CTranslate2 model: run `wmt export {folder} OUT`, and give OUT")
        available = torch.get_num_threads()
        self.workers, self.threads = min(available, WORKERS), max(1, available // min(available, WORKERS))
        settings = {
            "device": models.device.type,
            "device_index": models.device.index or 0,
            "inter_threads": self.workers,
            "intra_threads": self.threads,
        }
        try:
            self.translator = module.Translator(str(folder), **settings)
        except (RuntimeError, ValueError) as error:
            raise InputError(f"{folder} cannot be read by CTranslate2 ({error}): export it again") from error
        self.symbols = models.subwords.symbols(range(models.subwords.used_rows))
        self.tokens = {symbol: token for token, symbol in enumerate(self.symbols)}
        self.specials = [[self.symbols[token]] for token in (0, 1)]

    def run(self, batch: Sequence[Piece], settings: SearchSettings, nbest: int) -> list[list[Hypothesis]]:
        """See Engine. The score is log_probability / |Y|^alpha, EOS counted.

        CTranslate2 adds no EOS to a translation that its limit ends: its log-probability is without EOS.
        """
        settings.check_nbest(nbest)
        longest = [len(piece.ids) - 1 + settings.max_extra for piece in batch]
        found = self._search([piece.ids for piece in batch], max(longest), settings, nbest)
        for index, (hypotheses, limit) in enumerate(zip(found, longest, strict=True)):
            # CTranslate2 has one limit for a whole batch: search again where a sentence's own limit is exceeded.
            if any(len(hypothesis.ids) > limit for hypothesis in hypotheses):
                found[index] = self._search([batch[index].ids], limit, settings, nbest)[0]
        return found

    def length_penalty(self, length: int, alpha: float) -> float:
        return float(length**alpha)

    def _search(
        self, sentences: list[list[int]], limit: int, settings: SearchSettings, nbest: int
    ) -> list[list[Hypothesis]]:
        results = self.translator.translate_batch(
            [[self.symbols[token] for token in ids] for ids in sentences],
            beam_size=settings.beam,
            num_hypotheses=nbest,
            length_penalty=settings.alpha,
            max_decoding_length=limit,
            min_decoding_length=0,
            max_input_length=0,
            disable_unk=True,
            suppress_sequences=self.specials,
            return_scores=True,
        )
        found: list[list[Hypothesis]] = [[] for _ in results]
        for hypotheses, result in zip(found, results, strict=True):
            for symbols, score in zip(result.hypotheses, result.scores, strict=True):
                if not math.isfinite(score):
                    raise InputError(
                        f"CTranslate2 scores a translation as {score}: the weights are damaged, or they overflow; "
                        "export another checkpoint, or this one with --quantization float32"
                    )
                ids = [self.tokens[symbol] for symbol in symbols]
                hypotheses.append(Hypothesis(ids, score * self.length_penalty(len(ids) + 1, settings.alpha), score))
        return found
