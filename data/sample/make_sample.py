"""Make the embedded sample: a synthetic English-German and English-French corpus in WMT14's archive formats, and trees.

    python data/sample/make_sample.py [OUT]

OUT is this folder unless given. The sentences come from the grammar beside this file; training never combines the
pairs of constructions in HELD_OUT, and many validation and test sentences do. The text keeps to conventions that
tokenizing and detokenizing preserve: straight quotes in all languages, and in French a plain space before `?` and `:`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import random
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from grammar import english, english_trees, french, german
from grammar.sampling import Sampler
from grammar.syntax import Sentence, constructions
from grammar.words import load

SEED = 2014
TRAINING_PAIRS = 24_000
HELD_BACK = 500
"""Sentences of the validation set, and of the test set."""
NOVEL = 46
"""The sentences of both with a given pair of constructions never seen together: 23 in each set."""
OFTEN = 4
"""Every word form of the validation and test sets stands in this many training sentences or more."""
TREES = 10_000
"""Training sentences that the archive of trees has: the first ones of the training pairs."""
LONGEST = 32
"""The longest sentence, in words."""
LANGUAGES = ("en", "de", "fr")
HELD_OUT = (
    frozenset({"separable", "negation"}),
    frozenset({"question", "hyphen"}),
    frozenset({"number", "future"}),
    frozenset({"genitive", "past"}),
    frozenset({"modal", "fronted"}),
    frozenset({"quote", "negation"}),
    frozenset({"possessive", "comparison"}),
)


@dataclass(frozen=True)
class Example:
    """A sentence in three languages, the constructions that it combines, and the tree of the English sentence."""

    en: str
    de: str
    fr: str
    constructions: frozenset[str]
    tree: str
    """In Penn bracketing."""

    @property
    def is_novel(self) -> bool:
        """Whether it combines constructions that training never does."""
        return any(pair <= self.constructions for pair in HELD_OUT)


def word_forms(text: str) -> list[str]:
    """The words of a sentence: letters with inner hyphens, parted at apostrophes, or digits; case is kept."""
    return re.findall(r"[^\W\d_]+(?:-[^\W\d_]+)*|\d+(?:[.,]\d+)?", text)


@dataclass(frozen=True)
class _Draft:
    """A sentence not yet spelled out in German and French, which takes its time."""

    sentence: Sentence
    en: str
    constructions: frozenset[str]

    @property
    def held_out(self) -> frozenset[str] | None:
        """The first pair of HELD_OUT that it combines."""
        return next((pair for pair in HELD_OUT if pair <= self.constructions), None)

    def spelled(self) -> Example:
        """The sentence in three languages."""
        return Example(
            self.en,
            german.spell(self.sentence),
            french.spell(self.sentence),
            self.constructions,
            english_trees.tree(self.sentence),
        )


def _drafts(seed: int) -> Iterator[_Draft]:
    """Sentences without end, each English one once."""
    sampler = Sampler(load(), random.Random(seed))  # noqa: S311 (text, no secret)
    seen: set[str] = set()
    while True:
        sentence = sampler.sentence()
        text = english.spell(sentence)
        if text not in seen and len(text.split()) <= LONGEST:
            seen.add(text)
            yield _Draft(sentence, text, constructions(sentence))


def splits(seed: int = SEED, pairs: int = TRAINING_PAIRS) -> dict[str, list[Example]]:
    """The sentences of `train` (`pairs` of them), `valid` and `test`; none, on either side, is in training and a set.

    No training sentence combines a pair of HELD_OUT; 23 sentences of each set do for each pair. Each word form of
    the validation and test sets, in each language, is known from training.
    """
    source = _drafts(seed)
    ordinary = (draft.spelled() for draft in source if draft.held_out is None)
    train = list(itertools.islice(ordinary, pairs))
    known = {language: _counts(train, language) for language in LANGUAGES}
    seen = {getattr(example, language) for example in train for language in LANGUAGES}

    def is_fair(example: Example) -> bool:
        """Neither seen on one side in training, nor with a word that training hardly has."""
        texts = {language: getattr(example, language) for language in LANGUAGES}
        often = (known[language][form] >= OFTEN for language, text in texts.items() for form in word_forms(text))
        return seen.isdisjoint(texts.values()) and all(often)

    # As many of each held-out pair; None: the sentences that combine nothing new.
    wanted: dict[frozenset[str] | None, int] = dict.fromkeys(HELD_OUT, NOVEL)
    wanted[None] = 2 * HELD_BACK - len(HELD_OUT) * NOVEL
    chosen: dict[frozenset[str] | None, list[Example]] = {pair: [] for pair in wanted}
    while any(len(chosen[pair]) < wanted[pair] for pair in wanted):
        draft = next(source)
        group = chosen[draft.held_out]
        if len(group) < wanted[draft.held_out] and is_fair(example := draft.spelled()):
            group.append(example)
    parts: dict[str, list[Example]] = {"train": train, "valid": [], "test": []}
    for row, example in enumerate(itertools.chain(*chosen.values())):
        parts["valid" if row % 2 else "test"].append(example)
    for name in ("valid", "test"):
        random.Random(seed).shuffle(parts[name])  # noqa: S311 (text, no secret)
    return parts


def _counts(examples: Iterable[Example], language: str) -> Counter[str]:
    """In how many sentences each word form stands."""
    return Counter(form for example in examples for form in set(word_forms(getattr(example, language))))


def plain(examples: Iterable[Example], language: str) -> bytes:
    """One sentence a line."""
    return "".join(getattr(example, language) + "\n" for example in examples).encode()


def sgm(examples: Iterable[Example], side: str, source: str, target: str, language: str) -> bytes:
    """A test set's side, `src` or `ref`, as WMT writes it."""
    role = ' sysid="ref"' if side == "ref" else ""
    lines = [
        f'<{side}set setid="sampletest" srclang="{source}" trglang="{target}">',
        f'<doc{role} docid="sample" genre="synthetic" origlang="en">',
        "<p>",
        *(f'<seg id="{row}">{escape(getattr(each, language))}</seg>' for row, each in enumerate(examples, start=1)),
        "</p>",
        "</doc>",
        f"</{side}set>",
    ]
    return ("\n".join(lines) + "\n").encode()


def members(parts: Mapping[str, list[Example]]) -> dict[str, dict[str, bytes]]:
    """Each archive's members. As in WMT14, the test set's names give both directions: deen is German and English."""
    training, dev, test = {}, {}, {}
    for other in ("de", "fr"):
        for language in (other, "en"):
            training[f"training/sample.{other}-en.{language}"] = plain(parts["train"], language)
        name = f"test-full/sampletest-{other}en"
        test[f"{name}-src.en.sgm"] = sgm(parts["test"], "src", "en", other, "en")
        test[f"{name}-ref.{other}.sgm"] = sgm(parts["test"], "ref", "en", other, other)
        test[f"{name}-src.{other}.sgm"] = sgm(parts["test"], "src", other, "en", other)
        test[f"{name}-ref.en.sgm"] = sgm(parts["test"], "ref", other, "en", "en")
    for language in LANGUAGES:
        dev[f"dev/sampledev.{language}"] = plain(parts["valid"], language)
    trees = {
        f"trees/{name}.mrg": "".join(f"( {each.tree} )\n" for each in examples[:TREES]).encode()
        for name, examples in parts.items()
    }
    return {"training-parallel-sample.tgz": training, "dev.tgz": dev, "test-full.tgz": test, "trees.tgz": trees}


def archive(content: Mapping[str, bytes]) -> bytes:
    """A .tgz whose bytes depend on the content (and on zlib's version) alone."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=packed, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for name, data in content.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def main(arguments: list[str]) -> None:
    """Write the archives into the folder that the arguments name."""
    folder = Path(arguments[0]) if arguments else Path(__file__).resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in members(splits()).items():
        packed = archive(content)
        temporary = folder / f".{name}.tmp"
        temporary.write_bytes(packed)
        temporary.replace(folder / name)
        # What data/catalog/sample.yaml and sample-trees.yaml say of it.
        print(f"{name}: bytes: {len(packed)}, sha256: {hashlib.sha256(packed).hexdigest()}")


if __name__ == "__main__":
    main(sys.argv[1:])
