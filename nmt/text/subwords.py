"""Joint subword vocabularies of source and target (5.1): BPE (Sennrich et al. 2016) and word pieces.

The paper's word-piece model (Schuster & Nakajima 2012, Wu et al. 2016) was never released, so sentencepiece's `bpe`
model is used: like the word-piece model it merges characters to pieces, and it is the same for any number of threads,
which `unigram` is not.

Rows 0 to 3 of every vocabulary are PAD, BOS, EOS and UNK; the last rows are padding that no text uses.
"""

import io
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from nmt.common.files import read_yaml, writing
from nmt.errors import InputError
from nmt.ids import BOS, EOS, PAD, UNK
from nmt.text.bpe import INSIDE, Merges, Pair, learn_merges
from nmt.text.settings import SubwordSettings

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")  # the symbols of PAD, BOS, EOS and UNK

_CONTINUES = "@@"  # the end of a symbol that is not the last of its word, as subword-nmt writes it
_VERSION = "#version: 0.2"
_CACHED = 1 << 18  # words
_LONGEST = 4192  # bytes of a word above which sentencepiece leaves it out, in silence; it is learned from in parts


class Subwords(ABC):
    """A vocabulary, whose `symbols` before padding start with the specials."""

    def __init__(self, symbols: Sequence[str], settings: SubwordSettings) -> None:
        self.settings = settings
        self.used_rows = len(symbols)  # rows before padding
        self.size = math.ceil(self.used_rows / settings.multiple_of) * settings.multiple_of  # rows with padding
        self._symbols = [*symbols, *(f"<pad:{row}>" for row in range(1, self.size - self.used_rows + 1))]

    @abstractmethod
    def encode(self, line: str) -> list[int]:
        """Return the ids of a tokenised line, without EOS."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the tokenised line of these ids; specials and padding rows are skipped."""

    def symbols(self, ids: Iterable[int]) -> list[str]:
        """Return the symbols of rows, specials and padding rows included, for people to read."""
        return [self._symbols[token] for token in ids]

    def save(self, folder: Path) -> None:
        with writing(folder, folder=True) as temporary:
            self._save_model(temporary)
            sizes = {"kind": self.settings.kind, "size": self.size, "unpadded": self.used_rows}
            description = {**sizes, "settings": self.settings.model_dump(exclude_defaults=True)}
            (temporary / "subwords.yaml").write_text(yaml.safe_dump(description, sort_keys=False), encoding="utf-8")

    @abstractmethod
    def _save_model(self, folder: Path) -> None: ...


class BytePairs(Subwords):
    """Byte-pair encoding as by subword-nmt. Symbols end in `@@` unless they are the last of their word.

    Every character of the training text has its own rows, so only other characters become UNK. Single spaces separate
    words; `decode` does not restore further spaces. `codes` are the merges in the order learned.
    """

    def __init__(self, codes: Sequence[Pair], symbols: Sequence[str], settings: SubwordSettings) -> None:
        super().__init__(symbols, settings)
        self.codes = codes
        self._merges = Merges(codes)
        pieces = [
            symbol.removesuffix(_CONTINUES) + INSIDE if symbol.endswith(_CONTINUES) else symbol
            for symbol in symbols[len(SPECIALS) :]
        ]
        self._ids = {piece: token for token, piece in enumerate(pieces, start=len(SPECIALS))}
        texts = [piece.removesuffix(INSIDE) if piece.endswith(INSIDE) else piece + " " for piece in pieces]
        self._texts = [""] * len(SPECIALS) + texts + [""] * (self.size - self.used_rows)
        self._word = lru_cache(_CACHED)(self._ids_of)

    def encode(self, line: str) -> list[int]:
        ids: list[int] = []
        for word in line.split(" "):
            ids += self._word(word)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        return "".join([self._texts[token] for token in ids]).removesuffix(" ")

    def _ids_of(self, word: str) -> list[int]:
        if not word:
            return []
        pieces = self._merges.split(word)
        known = self._ids
        # A piece that occurs in the training text only within longer pieces has no row.
        if len(word) > 1 and not all(piece in known for piece in pieces):
            pieces = self._merges.split_unknown(pieces, known)
        return [known.get(piece, UNK) for piece in pieces]

    def _save_model(self, folder: Path) -> None:
        codes = [_VERSION, *(f"{first} {second}" for first, second in self.codes)]
        (folder / "codes.bpe").write_bytes(("\n".join(codes) + "\n").encode())
        (folder / "vocabulary.txt").write_bytes(("\n".join(self._symbols) + "\n").encode())


def _count_pieces(counts: Mapping[str, int], codes: Sequence[Pair]) -> Counter[str]:
    """Count the pieces after the merges; every character has an entry, both inside and at the end of a word."""
    merges = Merges(codes)
    pieces: Counter[str] = Counter()
    characters: set[str] = set()
    for word, count in counts.items():
        for piece in merges.split(word):
            # A word that ends in the text `@@` must not end in a symbol that marks the inside of a word.
            if not piece.endswith(_CONTINUES):
                pieces[piece] += count
        characters.update(word)
    for character in characters:
        pieces[character] += 0
        pieces[character + INSIDE] += 0
    return pieces


def _learn_byte_pairs(counts: Mapping[str, int], settings: SubwordSettings) -> BytePairs:
    if settings.vocabulary is None:
        codes = learn_merges(counts, settings.merges or 0)
        pieces = _count_pieces(counts, codes)
    else:
        codes, pieces = _fill(counts, settings.vocabulary)
    ordered = sorted(pieces, key=lambda piece: (-pieces[piece], piece))
    # INSIDE is at the end of a piece or nowhere.
    return BytePairs(codes, [*SPECIALS, *(piece.replace(INSIDE, _CONTINUES) for piece in ordered)], settings)


def _fill(counts: Mapping[str, int], vocabulary: int) -> tuple[list[Pair], Counter[str]]:
    """Return merges whose pieces fill at least 99.5% of `vocabulary` rows, if the text has enough, and the counts."""
    rows = vocabulary - len(SPECIALS)
    characters = 2 * len(set().union(*counts))
    if characters > rows:
        raise InputError(
            f"subwords.vocabulary is {vocabulary}, but the training text has {characters // 2} different "
            f"characters, which need {characters + len(SPECIALS)} rows: raise it at least to that"
        )
    # A merge adds at most one row: its own piece, while its parts may fall out of use. So this many merges always fit.
    merges, limit = rows - characters, rows
    learned = learn_merges(counts, limit)
    while True:
        if merges > len(learned) == limit:
            limit *= 2
            learned = learn_merges(counts, limit)
        codes = learned[:merges]
        pieces = _count_pieces(counts, codes)
        left = rows - len(pieces)
        if left <= rows // 200 or merges >= len(learned):
            return codes, pieces
        merges += left


class WordPieces(Subwords):
    """Word pieces by sentencepiece: nothing is normalised, every space stays, unseen characters become bytes.

    `decode` restores every line, but for U+2581, sentencepiece's own symbol for a space, which becomes one. UNK never
    occurs. Raises RuntimeError if `model` is no model of sentencepiece's.
    """

    def __init__(self, model: bytes, settings: SubwordSettings) -> None:
        from sentencepiece import SentencePieceProcessor

        self._model = model
        self._processor: Any = SentencePieceProcessor(model_proto=model)
        super().__init__(self._processor.id_to_piece(list(range(self._processor.get_piece_size()))), settings)

    def encode(self, line: str) -> list[int]:
        return list(self._processor.encode(line))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the line of these ids; bytes that are not UTF-8 become U+FFFD."""
        tokens = [token for token in ids if len(SPECIALS) <= token < self.used_rows]
        text: str = self._processor.decode(tokens)
        # A translation model may produce the byte of \n, which would split the line.
        return text.replace("\n", " ")

    def scores(self) -> list[float]:
        """Return the score of each row before padding: of two pairs, the one with the higher score is merged first."""
        return list(self._processor.get_score(list(range(self.used_rows))))

    def _save_model(self, folder: Path) -> None:
        (folder / "wordpieces.model").write_bytes(self._model)


def _learn_word_pieces(counts: Mapping[str, int], settings: SubwordSettings) -> WordPieces:
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            # Pieces never cross a space, so words and their counts suffice, and take far less memory than the text.
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
            # With the defaults, `decode` does not restore a third of ordinary lines.
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            byte_fallback=True,
            num_threads=1,
            minloglevel=2,
            **settings.sentencepiece_options,  # Its model would note a default that is given.
        )
    except RuntimeError as error:
        raise InputError(
            f"sentencepiece cannot learn {settings.vocabulary} word pieces from {len(counts):,} different words "
            f"({str(error).rsplit('] ', 1)[-1]}): change subwords.vocabulary, or give more text"
        ) from error
    return WordPieces(model.getvalue(), settings)


def _in_parts(counts: Mapping[str, int]) -> Mapping[str, int]:
    """Return the counts with parts in place of the longest words, such as lines of a script without spaces.

    Sentencepiece leaves these out, and the time of learning merges grows with the square of a word's length.
    """
    long = [word for word in counts if len(word) > _LONGEST // 4 and len(word.encode()) > _LONGEST]
    if not long:
        return counts
    parts = Counter(counts)
    for word in long:
        count = parts.pop(word)
        for at in range(0, len(word), _LONGEST // 4):  # A character has at most 4 bytes.
            parts[word[at : at + _LONGEST // 4]] += count
    return parts


def learn(counts: Mapping[str, int], settings: SubwordSettings) -> Subwords:
    """Learn a joint vocabulary from the counts of the words on both sides of the training text, in any order.

    Words have no space, tab or \\n. `settings.vocabulary` is the number of rows before padding, specials included (and
    the 256 bytes of word pieces): BPE has at most half a percent less, and both have fewer if the text has no more.
    Raises InputError if there are no words, or more characters than rows.
    """
    if not counts:
        raise InputError("the training text has no words to learn subwords from: give a corpus that has some")
    counts = _in_parts(counts)
    return _learn_byte_pairs(counts, settings) if settings.kind == "bpe" else _learn_word_pieces(counts, settings)


def load(folder: Path) -> Subwords:
    """Return the vocabulary of a folder; raise InputError if files are missing, damaged or do not fit together."""
    try:
        return _read(folder)
    # ValueError includes UTF-8 errors and wrong settings; RuntimeError is sentencepiece's for a damaged model.
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{folder} holds no usable subwords ({reason}): learn the subwords again") from error


def _read(folder: Path) -> Subwords:
    description = read_yaml(folder / "subwords.yaml")
    settings = SubwordSettings.model_validate(description["settings"])
    size, used_rows = description["size"], description["unpadded"]
    subwords: Subwords
    if settings.kind == "bpe":
        version, *lines = (folder / "codes.bpe").read_bytes().decode().removesuffix("\n").split("\n")
        pairs = [line.split(" ") for line in lines]
        if version != _VERSION or any(len(pair) != 2 or not all(pair) for pair in pairs):
            raise ValueError(f"codes.bpe is not `{_VERSION}` and then two symbols per line")
        codes = [(first, second) for first, second in pairs]
        rows = (folder / "vocabulary.txt").read_bytes().decode().removesuffix("\n").split("\n")
        subwords = BytePairs(codes, rows[:used_rows], settings)
    else:
        subwords = WordPieces((folder / "wordpieces.model").read_bytes(), settings)
        rows = subwords.symbols(range(subwords.size))
    if (subwords.size, subwords.used_rows) != (size, used_rows) or subwords.symbols(range(size)) != rows:
        raise ValueError(f"its files hold {len(rows)} rows, subwords.yaml says {used_rows}, with padding {size}")
    if tuple(rows[: len(SPECIALS)]) != SPECIALS:
        raise ValueError(f"its rows do not start with {', '.join(SPECIALS)}")
    if isinstance(subwords, BytePairs):
        # A file that was cut short between two lines is well-formed.
        made = {first + second.removesuffix("</w>") for first, second in subwords.codes}
        texts = (row.removesuffix(_CONTINUES) for row in rows[len(SPECIALS) : used_rows])
        if lost := next((text for text in texts if len(text) > 1 and text not in made), None):
            raise ValueError(f"no merge in codes.bpe makes the row `{lost}`")
    return subwords
