"""CTranslate2 behind our Translator, for models that `wmt export` made."""

from collections.abc import Sequence
from pathlib import Path

import ctranslate2
import torch

from nmt.inference.engine import WORKERS, Engine, Piece
from nmt.inference.loading import LoadedModel
from nmt.inference.search import Hypothesis
from nmt.inference.settings import SearchSettings


class CTranslate2Engine(Engine):
    """An exported model, with the subwords of the folder that it was exported from."""

    batch_tokens = 4096

    def __init__(self, folder: Path, loaded: LoadedModel) -> None:
        available = torch.get_num_threads()
        self.workers = min(available, WORKERS)
        self.threads = max(1, available // self.workers)
        self.translator = ctranslate2.Translator(
            str(folder), device=loaded.device.type, inter_threads=self.workers, intra_threads=self.threads
        )
        self.symbols = loaded.subwords.symbols(range(loaded.subwords.used_rows))
        self.tokens = {symbol: token for token, symbol in enumerate(self.symbols)}
        self.specials = [[self.symbols[token]] for token in (0, 1)]

    def run(self, batch: Sequence[Piece], settings: SearchSettings, nbest: int) -> list[list[Hypothesis]]:
        """The score is log_probability / |Y|^alpha, EOS counted, but not where the limit ends a translation."""
        longest = [len(piece.ids) - 1 + settings.max_extra for piece in batch]
        translated = self._search([piece.ids for piece in batch], max(longest), settings, nbest)
        for index, (hypotheses, limit) in enumerate(zip(translated, longest, strict=True)):
            # CTranslate2 has one limit for a whole batch: search again where a sentence's own limit is exceeded.
            if any(len(hypothesis.ids) > limit for hypothesis in hypotheses):
                translated[index] = self._search([batch[index].ids], limit, settings, nbest)[0]
        return translated

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
        of_lines: list[list[Hypothesis]] = [[] for _ in results]
        for hypotheses, result in zip(of_lines, results, strict=True):
            for symbols, score in zip(result.hypotheses, result.scores, strict=True):
                ids = [self.tokens[symbol] for symbol in symbols]
                hypotheses.append(Hypothesis(ids, score * (len(ids) + 1) ** settings.alpha, score))
        return of_lines
