"""Raw lines to translations: cut into pieces, searched, written as text or trees."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import get_args

import torch

from nmt.errors import InputError
from nmt.inference.alignment import alignment
from nmt.inference.engine import Engine, Piece, search_lines
from nmt.inference.loading import LoadedModel
from nmt.inference.options import WINDOW, Split
from nmt.inference.search import Hypothesis, length_penalty
from nmt.inference.settings import SearchSettings
from nmt.text.parallel_text import is_blank
from nmt.text.scripts import SENTENCES_JOINED, code
from nmt.text.sentences import split_sentences

_WORDS = re.compile(r"[^\W_]")  # a line or a sentence without it, as `-` or `...`, is its own translation


@dataclass(frozen=True)
class Translation:
    """A line and its translations, best first."""

    source: str
    pieces: list[Piece]
    """Empty for a line without words, several for a line that was split."""
    hypotheses: list[Hypothesis]
    texts: list[str]
    """The detokenised hypotheses; of a line without words, its punctuation."""
    repairs: list[Counter[str]]
    """What had to be repaired in each hypothesis to make a tree, by name."""


def _copied(text: str) -> str:
    """Return a text without words as one line."""
    return " ".join(text.split())


class Translator:
    """Translates raw lines with a model folder, or with several as an ensemble."""

    def __init__(
        self,
        folders: str | Path | LoadedModel | Sequence[str | Path | LoadedModel],
        device: str | torch.device | None = None,
        settings: SearchSettings | None = None,
        engine: Engine | None = None,
        longest: float | None = None,
        split: Split = "long",
    ) -> None:
        """Open the models on `device`: by default a GPU or, without one, the CPU.

        `settings`: of the search, by default the first folder's. `engine`: what searches with these models.
        Lines of more than `longest` subwords are split at sentence ends, by default none (`wmt translate`: of more than
        256); with `split="sentences"` all lines are. Of a line of several sentences that is not split, a model may
        translate the first alone: it was trained on lines of one. Lines to parse are never split: several trees are no
        tree of the line.

        Raises InputError without folders, if a folder is incomplete or has another vocabulary than the first, and if
        `max_extra` leaves no learned position for a source.
        """
        on = None if device is None else torch.device(device)
        given = [folders] if isinstance(folders, str | Path | LoadedModel) else folders
        models = [folder if isinstance(folder, LoadedModel) else LoadedModel(Path(folder), on) for folder in given]
        if not models:
            raise InputError("no model folder is given: give at least one")
        self.model, *others = models
        for other in others:
            self.model.check_shares_vocabulary(other)
        self.description = self.model.description
        self.settings = settings or self.description.search
        self.repairs: Counter[str] = Counter()
        """Of all lines so far: `trees`, `malformed trees`, and how often each repair of these was needed."""
        self.engine = engine or Engine(self.model, others=others)
        self.alignment = lru_cache(64)(partial(alignment, [model.transformer for model in models]))
        """`alignment` of tuples; a tree's repair and --json ask for the same one."""
        if split not in get_args(Split):
            raise InputError(f"split is {split!r}: give 'long' or 'sentences'")
        self.split = split
        self.skipped: list[str] | None = None
        """If it is a list, lines that are too long are empty, and their messages are put here."""
        sizes = [member.description.model for member in models]
        positions = min([math.inf, *(size.max_positions for size in sizes if size.positions == "learned")])
        self.room = positions - self.settings.max_extra - 1
        """The most subwords of a source that every model has positions for."""
        if self.room < 1:
            raise InputError(
                f"the search's max_extra is {self.settings.max_extra:,}, but the model has {positions:,} positions: "
                f"give --max-extra at most {positions - 2:,}"
            )
        self.longest = min(longest or math.inf, self.room)  # the most subwords of a source

    def translate(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the best translation of each line, in order; an empty line for a line without text.

        Raises InputError for a string in place of lines, and as `translations` does.
        """
        if isinstance(lines, str):
            raise InputError("a list of lines is needed, not one string: give [line]")
        for translation in self.translations(lines):
            yield translation.texts[0]

    def translations(
        self, lines: Iterable[str], nbest: int = 1, batch_tokens: int | None = None, window: int = WINDOW
    ) -> Iterator[Translation]:
        """Yield the translations of each line with their scores.

        `window` and `batch_tokens` are as for `search_lines`. Raises InputError for a line that is too long, after the
        translations of the lines before it.
        """
        numbered = ((line, self.pieces(line, number)) for number, line in enumerate(lines))
        for searched in search_lines(self.engine, numbered, self.settings, nbest, batch_tokens, window):
            yield self._translation(*searched)

    def pieces(self, line: str, number: int = 0) -> list[Piece]:
        """Return the pieces of a line to translate: the line, none without text, its sentences if it is too long.

        Raises InputError if one of these is too long: nothing is cut off.
        """
        whole = Piece(self.model.encode(line), line)
        if not whole.ids or not (self.model.writes_trees or _WORDS.search(line)):
            return []
        pieces = [whole]
        if not self.model.writes_trees and (self.split == "sentences" or len(whole.ids) - 1 > self.longest):
            sentences = split_sentences(line, self.description.source)
            pieces = [Piece(self.model.encode(text) if _WORDS.search(text) else [], text) for text in sentences]
        for piece in pieces:
            if (length := len(piece.ids) - 1) > self.longest:
                subject = "its sentence" if len(pieces) > 1 else "the line"
                done = "parsed" if self.model.writes_trees else "translated"
                remedy = f"give --longest {length}" if length <= self.room else "shorten it"
                problem = (
                    f"line {number + 1}: {subject} `{piece.text[:40]}...` has {length:,} subwords, and at most "
                    f"{self.longest:,} are {done} at once: {remedy}, or leave it out"
                )
                if self.skipped is None:
                    raise InputError(problem)
                self.skipped.append(problem)
                return []
        return [piece for piece in pieces if piece.ids or not is_blank(piece.text)]

    def _decode(self, ids: list[int], piece: Piece) -> tuple[str, Counter[str]]:
        """Return the raw text of a hypothesis, and what had to be repaired in it to make a tree."""
        repairs: Counter[str] = Counter()
        text = self.model.write(ids, piece.text, lambda: self.alignment(tuple(piece.ids), tuple(ids)).numpy(), repairs)
        if self.model.writes_trees:
            self.repairs += repairs + Counter({"trees": 1, "malformed trees": int(bool(repairs))})
        return text, repairs

    def _translation(self, line: str, pieces: list[Piece], of_pieces: list[list[Hypothesis]]) -> Translation:
        if not pieces:
            copied = "" if self.model.writes_trees or is_blank(line) or _WORDS.search(line) else _copied(line)
            return Translation(line, [], [], [copied], [])
        if len(pieces) == 1:
            decoded = [self._decode(one.ids, pieces[0]) for one in of_pieces[0]]
            return Translation(
                line, pieces, of_pieces[0], [text for text, _ in decoded], [repairs for _, repairs in decoded]
            )
        # The translation of a line that was split joins the best translations of its sentences.
        best = [hypotheses[0] for hypotheses in of_pieces if hypotheses]
        total, length = sum(one.log_probability for one in best), sum(len(one.ids) + 1 for one in best)
        ids = [token for one in best for token in one.ids]
        space = "" if code(self.description.target) in SENTENCES_JOINED else " "
        both = zip(of_pieces, pieces, strict=True)
        text = space.join(self._decode(one[0].ids, piece)[0] if one else _copied(piece.text) for one, piece in both)
        joined = Hypothesis(ids, total, total / length_penalty(length, self.settings.alpha))
        return Translation(line, pieces, [joined], [text], [])
