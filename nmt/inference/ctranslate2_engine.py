"""CTranslate2 as an engine: models that `wmt export` made, searched by CTranslate2.

Its length penalty is |Y|^alpha and not GNMT's, and its rule for ending is another: it never makes a paper's number.
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

NOTE = (
    "CTranslate2's length penalty is |Y|^alpha, not GNMT's ((5+|Y|)/6)^alpha, and its search ends by another rule: "
    "its translations and scores are not for comparison with the paper's"
)


def library() -> Any:
    """The module ctranslate2; raises InputError where it is not installed."""
    try:
        import ctranslate2
    except ModuleNotFoundError as error:
        raise InputError(
            "CTranslate2 is not installed: `pip install ctranslate2`, or `pip install -e '.[ctranslate2]'`"
        ) from error
    return ctranslate2


class CTranslate2Engine(Engine):
    """An exported model. Every batch is one call; as many run at a time as there are processors."""

    def __init__(self, folder: Path, models: Models) -> None:
        """Raises InputError where `folder` is no exported model, or CTranslate2 is not installed."""
        module = library()
        if not (folder / "model.bin").exists():
            raise InputError(
                f"{folder} is no CTranslate2 model: make one of it by `wmt export {folder} OUT`, and give OUT"
            )
        available = torch.get_num_threads()
        self.workers, self.threads = min(available, WORKERS), max(1, available // min(available, WORKERS))
        device = models.device.type
        try:
            self.translator = module.Translator(
                str(folder), device=device, inter_threads=self.workers, intra_threads=self.threads
            )
        except (RuntimeError, ValueError) as error:
            raise InputError(f"{folder} cannot be read by CTranslate2 ({error}): export it again") from error
        self.symbols = models.subwords.symbols(range(models.subwords.unpadded))
        self.rows = {symbol: row for row, symbol in enumerate(self.symbols)}
        self.specials = [[self.symbols[row]] for row in (0, 1)]

    def run(self, batch: Sequence[Piece], settings: SearchSettings, nbest: int) -> list[list[Hypothesis]]:
        """See Engine. A score is log_probability / |Y|^alpha, EOS counted."""
        settings.check_nbest(nbest)
        longest = [len(piece.ids) - 1 + settings.max_extra for piece in batch]
        found = self._search([piece.ids for piece in batch], max(longest), settings, nbest)
        for index, (hypotheses, limit) in enumerate(zip(found, longest, strict=True)):
            # Its limit is one number for a whole batch.
            if any(len(hypothesis.ids) > limit for hypothesis in hypotheses):
                found[index] = self._search([batch[index].ids], limit, settings, nbest)[0]
        return found

    def _search(
        self, sentences: list[list[int]], limit: int, settings: SearchSettings, nbest: int
    ) -> list[list[Hypothesis]]:
        results = self.translator.translate_batch(
            [[self.symbols[row] for row in ids] for ids in sentences],
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
        found = []
        for result in results:
            ids = [[self.rows[symbol] for symbol in symbols] for symbols in result.hypotheses]
            found.append([self._hypothesis(*pair, settings.alpha) for pair in zip(ids, result.scores, strict=True)])
        return found

    @staticmethod
    def _hypothesis(ids: list[int], score: float, alpha: float) -> Hypothesis:
        if not math.isfinite(score):
            raise InputError(
                f"CTranslate2 scores a translation as {score}: the weights are damaged, or they overflow; export "
                "another checkpoint, or this one with --quantization float32"
            )
        return Hypothesis(ids, score * (len(ids) + 1) ** alpha, score)
