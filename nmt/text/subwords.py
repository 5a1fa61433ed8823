"""Joint subword vocabularies of source and target (5.1): BPE (Sennrich et al. 2016) and word pieces, one interface.

The paper's word-piece model (Schuster & Nakajima 2012, Wu et al. 2016) was never released; sentencepiece stands in
for it. Of its models the bottom-up one, `bpe`, is taken: like the word-piece model it grows pieces from characters
by merging, and being made of whole counts it is the same for any number of threads, which `unigram` is not.

Rows 0 to 3 of every vocabulary are PAD, BOS, EOS and UNK; its size is padded with rows that no text reaches.
The libraries of text are imported where they are used: training needs none of them.
"""

from __future__ import annotations

import io
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from nmt.common.files import writing
from nmt.config import BOS, EOS, PAD, UNK, InputError, SubwordSettings
from nmt.text.bpe import INSIDE, Merges, learn_merges
from nmt.text.word_cache import Remembered

__all__ = ["BOS", "EOS", "PAD", "UNK", "BytePairs", "Subwords", "WordPieces", "learn", "load"]

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
"""The symbols of PAD, BOS, EOS and UNK."""

_CONTINUES = "@@"
"""What ends a symbol that the next one continues, as subword-nmt writes it."""
_VERSION = "#version: 0.2"
_CACHED = 1 << 17
"""Words whose ids are remembered, twice over."""
_SPACE = "\u2581"
"""What sentencepiece writes a space as."""
_PRIVATE = range(0x100000, 0x10FFFE)


class Subwords(ABC):
    """A vocabulary and the two ways through it."""

    def __init__(self, symbols: Sequence[str], settings: SubwordSettings) -> None:
        """`symbols` are all rows before padding, the specials first."""
        self.settings = settings
        self.unpadded = len(symbols)
        """Rows that text or the model can reach."""
        self.size = math.ceil(self.unpadded / settings.multiple_of) * settings.multiple_of
        """Rows in all: those, and padding up to a multiple for the hardware."""
        self._symbols = [*symbols, *(f"<pad:{row}>" for row in range(1, self.size - self.unpadded + 1))]

    @abstractmethod
    def encode(self, line: str) -> list[int]:
        """The ids of a tokenised line, without EOS."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The tokenised line that ids stand for; specials and padding rows are skipped."""

    def symbols(self, ids: Iterable[int]) -> list[str]:
        """The rows' names, for people to read; specials and padding rows have theirs."""
        return [self._symbols[row] for row in ids]

    def save(self, folder: Path) -> None:
        """Write the folder that `load` reads."""
        with writing(folder) as temporary:
            temporary.mkdir()
            self._save_model(temporary)
            description = {
                "kind": self.settings.kind,
                "size": self.size,
                "unpadded": self.unpadded,
                "settings": self.settings.model_dump(exclude_defaults=True),
            }
            with (temporary / "subwords.yaml").open("w", encoding="utf-8", newline="\n") as file:
                yaml.safe_dump(description, file, sort_keys=False)

    @abstractmethod
    def _save_model(self, folder: Path) -> None: ...


class BytePairs(Subwords):
    """Byte-pair encoding by subword-nmt. Symbols end in `@@` where the word goes on.

    Every character of the training text has its rows, so that text comes back whole; only others become UNK.
    Words are what single spaces separate; further spaces do not come back.
    """

    def __init__(self, codes: Sequence[tuple[str, str]], symbols: Sequence[str], settings: SubwordSettings) -> None:
        """`codes` are the merges in the order learned, `symbols` all rows before padding."""
        super().__init__(symbols, settings)
        self._codes = codes
        self._merges = Merges(codes)
        pieces = [_piece(symbol) for symbol in symbols[len(SPECIALS) :]]
        self._ids = {piece: row for row, piece in enumerate(pieces, start=len(SPECIALS))}
        texts = [piece.removesuffix(INSIDE) if piece.endswith(INSIDE) else piece + " " for piece in pieces]
        self._texts = [""] * len(SPECIALS) + texts + [""] * (self.size - self.unpadded)
        self._words: Remembered[list[int]] = Remembered(self._word, _CACHED)

    def encode(self, line: str) -> list[int]:
        """The ids of a tokenised line, without EOS."""
        ids: list[int] = []
        words = self._words
        for word in line.split(" "):
            ids += words[word]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The tokenised line that ids stand for; a word left unfinished ends there."""
        return "".join([self._texts[row] for row in ids]).removesuffix(" ")

    def _word(self, word: str) -> list[int]:
        if not word:
            return []
        pieces = self._merges.split(word)
        known = self._ids
        # Parts of merges that no training text ends up with have no rows of their own.
        if len(word) > 1 and not all(piece in known for piece in pieces):
            pieces = self._merges.take_apart(pieces, known)
        return [known.get(piece, UNK) for piece in pieces]

    def _save_model(self, folder: Path) -> None:
        codes = [_VERSION, *(f"{first} {second}" for first, second in self._codes)]
        (folder / "codes.bpe").write_bytes(("\n".join(codes) + "\n").encode())
        (folder / "vocabulary.txt").write_bytes(("\n".join(self._symbols) + "\n").encode())


def _symbol(piece: str) -> str:
    return piece.removesuffix(INSIDE) + _CONTINUES if piece.endswith(INSIDE) else piece


def _piece(symbol: str) -> str:
    return symbol.removesuffix(_CONTINUES) + INSIDE if symbol.endswith(_CONTINUES) else symbol


def _count_pieces(counts: Mapping[str, int], codes: Sequence[tuple[str, str]]) -> Counter[str]:
    """How often each piece occurs when the merges are applied; every character has an entry both ways."""
    merges = Merges(codes)
    pieces: Counter[str] = Counter()
    characters: set[str] = set()
    for word, count in counts.items():
        for piece in merges.split(word):
            # A word that ends in the text `@@` must not end in a symbol that says that it goes on.
            if not piece.endswith(_CONTINUES):
                pieces[piece] += count
        characters.update(word)
    for character in characters:
        pieces[character] += 0
        pieces[character + INSIDE] += 0
    return pieces


def _parse_codes(text: str, name: str) -> list[tuple[str, str]]:
    version, *lines = text.removesuffix("\n").split("\n")
    pairs = [tuple(line.split(" ")) for line in lines]
    if version != _VERSION or any(len(pair) != 2 or not all(pair) for pair in pairs):
        raise ValueError(f"{name} is not `{_VERSION}` and then two symbols a line")
    return [(first, second) for first, second in pairs]


def _learn_byte_pairs(counts: Mapping[str, int], settings: SubwordSettings) -> BytePairs:
    if settings.vocabulary is not None:
        codes, pieces = _fill(counts, settings.vocabulary)
    else:
        codes = learn_merges(counts, settings.merges or 0)
        pieces = _count_pieces(counts, codes)
    ordered = sorted(pieces, key=lambda piece: (-pieces[piece], piece))
    return BytePairs(codes, [*SPECIALS, *map(_symbol, ordered)], settings)


def _fill(counts: Mapping[str, int], vocabulary: int) -> tuple[list[tuple[str, str]], Counter[str]]:
    """As many merges as fill `vocabulary` rows to half a percent, and how often each piece occurs."""
    rows = vocabulary - len(SPECIALS)
    characters = 2 * len(set().union(*counts))
    if characters > rows:
        raise InputError(
            f"subwords.vocabulary is {vocabulary}, but the training text has {characters // 2} different "
            f"characters, which need {characters + len(SPECIALS)} rows: raise it at least to that"
        )
    # A merge adds one piece, and may leave its parts without use: as many as there are rows left never overshoot.
    merges, asked = rows - characters, rows
    learned = learn_merges(counts, asked)
    while True:
        if merges > len(learned) == asked:
            asked *= 2
            learned = learn_merges(counts, asked)
        codes = learned[:merges]
        pieces = _count_pieces(counts, codes)
        left = rows - len(pieces)
        if left <= rows // 200 or merges >= len(learned):
            return codes, pieces
        merges += left


class WordPieces(Subwords):
    """Word pieces by sentencepiece: nothing is normalised, every space stays, unseen characters become bytes.

    Every line comes back as it was, and UNK never occurs.
    """

    def __init__(self, model: bytes, settings: SubwordSettings) -> None:
        """`model` is sentencepiece's; raises RuntimeError where it is none."""
        from sentencepiece import SentencePieceProcessor

        self._model = model
        self._processor: Any = SentencePieceProcessor(model_proto=model)
        super().__init__(self._processor.id_to_piece(list(range(self._processor.get_piece_size()))), settings)
        self._space_bytes = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in _SPACE.encode()]

    def encode(self, line: str) -> list[int]:
        """The ids of a line, without EOS."""
        if _SPACE in line:
            return self._encode_written_space(line)
        ids: list[int] = self._processor.encode(line)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The line that ids stand for; bytes that make no character become U+FFFD."""
        rows = [row for row in ids if len(SPECIALS) <= row < self.unpadded]
        text: str = self._processor.decode(rows)
        # A model may produce the byte of a line's end; text never does, and a line has to stay one.
        return text.replace("\n", " ")

    def _encode_written_space(self, line: str) -> list[int]:
        """The character that sentencepiece writes spaces as would come back as a space: it is spelled in bytes.

        Some private character takes its place, and the bytes of that one are exchanged afterwards.
        """
        stand_in = next(chr(c) for c in _PRIVATE if chr(c) not in line and self._processor.piece_to_id(chr(c)) == UNK)
        wanted = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in stand_in.encode()]
        ids: list[int] = []
        for row in self._processor.encode(line.replace(_SPACE, stand_in)):
            ids.append(row)
            if ids[-len(wanted) :] == wanted:
                ids[-len(wanted) :] = self._space_bytes
        return ids

    def _save_model(self, folder: Path) -> None:
        (folder / "wordpieces.model").write_bytes(self._model)


def _learn_word_pieces(counts: Mapping[str, int], settings: SubwordSettings) -> WordPieces:
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            # Pieces never cross a space, so words and their counts say all that the text does, in far less memory.
            sentence_iterator=(f"{word}\t{count}" for word, count in sorted(counts.items())),
            input_format="tsv",
            model_writer=model,
            model_type="bpe",
            vocab_size=settings.vocabulary,
            hard_vocab_limit=False,
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=UNK,
            # With the defaults a third of ordinary lines do not come back.
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            byte_fallback=True,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise InputError(
            f"sentencepiece cannot learn {settings.vocabulary} word pieces from {len(counts):,} different words "
            f"({str(error).rsplit('] ', 1)[-1]}): change subwords.vocabulary, or give more text"
        ) from error
    return WordPieces(model.getvalue(), settings)


def learn(counts: Mapping[str, int], settings: SubwordSettings) -> Subwords:
    """Learn a joint vocabulary from the words of both sides of the training text and how often each occurs.

    Words hold no space, tab or line's end. `settings.vocabulary` counts the rows aimed at before padding, specials
    included (and the 256 bytes of word pieces): BPE comes within half a percent below, and either has fewer where
    the text has no more. The same counts give the same bytes, in whatever order.
    Raises InputError where there are no words, or more characters than rows.
    """
    if not counts:
        raise InputError("the training text has no words to learn subwords from: give a corpus that has some")
    return _learn_byte_pairs(counts, settings) if settings.kind == "bpe" else _learn_word_pieces(counts, settings)


def load(folder: Path) -> Subwords:
    """The vocabulary of a subword folder; raises InputError where files are missing, damaged or do not fit together."""
    try:
        return _read(folder)
    # ValueError: also what is no UTF-8 and no valid settings; RuntimeError: no model of sentencepiece's.
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{folder} holds no usable subwords ({reason}): learn the subwords again") from error


def _read(folder: Path) -> Subwords:
    description = yaml.safe_load((folder / "subwords.yaml").read_text(encoding="utf-8"))
    settings = SubwordSettings.model_validate(description["settings"])
    size, unpadded = description["size"], description["unpadded"]
    subwords: Subwords
    if settings.kind == "bpe":
        codes = _parse_codes((folder / "codes.bpe").read_bytes().decode(), "codes.bpe")
        rows = (folder / "vocabulary.txt").read_bytes().decode().removesuffix("\n").split("\n")
        subwords = BytePairs(codes, rows[:unpadded], settings)
    else:
        subwords = WordPieces((folder / "wordpieces.model").read_bytes(), settings)
        rows = subwords.symbols(range(subwords.size))
    if (subwords.size, subwords.unpadded) != (size, unpadded) or subwords.symbols(range(size)) != rows:
        raise ValueError(f"its files hold {len(rows)} rows, subwords.yaml says {unpadded}, with padding {size}")
    if tuple(rows[: len(SPECIALS)]) != SPECIALS:
        raise ValueError(f"its rows do not start with {', '.join(SPECIALS)}")
    return subwords
