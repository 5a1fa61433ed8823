"""Make the archives of the embedded sample, in WMT14's formats, from sentences.tsv.

    python data/sample/make_sample.py [OUT]

OUT is this folder unless given. sentences.tsv has English, German, French and a topic in each line, for people to read
and correct. The validation and the test set are chosen by a hash of the English sentence, among those that differ from
every other sentence in two words or more.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
HELD_OUT = 500
"""Sentences of the validation set, and of the test set."""
LANGUAGES = ("en", "de", "fr")


class Sentence(NamedTuple):
    en: str
    de: str
    fr: str
    topic: str


def read(path: Path = HERE / "sentences.tsv") -> list[Sentence]:
    """Return the sentences of the file, in its order."""
    return [Sentence(*line.split("\t")) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def neighbourhood(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of a sentence, without each one, and with a gap in place of each one.

    Two sentences that share one of them differ in at most one word.
    """
    words = tuple(re.findall(r"[\w']+", text.lower()))
    yield words
    for place in range(len(words)):
        yield (*words[:place], *words[place + 1 :])
        yield (*words[:place], "_", *words[place + 1 :])


def splits(sentences: Iterable[Sentence]) -> dict[str, list[Sentence]]:
    """Return the sentences of `train`, `valid` and `test`."""
    ordered = sorted(sentences, key=lambda sentence: hashlib.sha256(sentence.en.encode()).digest())
    near = Counter(form for sentence in ordered for form in set(neighbourhood(sentence.en)))
    apart = [sentence for sentence in ordered if all(near[form] == 1 for form in set(neighbourhood(sentence.en)))]
    held_out = apart[: 2 * HELD_OUT]
    chosen = set(held_out)
    train = [sentence for sentence in ordered if sentence not in chosen]
    return {"train": train, "valid": held_out[1::2], "test": held_out[::2]}


def plain(sentences: Iterable[Sentence], language: str) -> bytes:
    """Return one sentence a line."""
    return "".join(getattr(sentence, language) + "\n" for sentence in sentences).encode()


def sgm(sentences: Iterable[Sentence], side: str, source: str, target: str) -> bytes:
    """Return a test set's side, `src` or `ref`, as WMT writes it."""
    role, language = (' sysid="ref"', target) if side == "ref" else ("", source)
    lines = [
        f'<{side}set setid="sampletest" srclang="{source}" trglang="{target}">',
        f'<doc{role} docid="sample" genre="everyday" origlang="en">',
        "<p>",
        *(
            f'<seg id="{row}">{escape(getattr(sentence, language))}</seg>'
            for row, sentence in enumerate(sentences, start=1)
        ),
        "</p>",
        "</doc>",
        f"</{side}set>",
    ]
    return ("\n".join(lines) + "\n").encode()


def members(parts: Mapping[str, list[Sentence]]) -> dict[str, dict[str, bytes]]:
    """Return each archive's members by name."""
    training = {f"training/sample.{language}": plain(parts["train"], language) for language in LANGUAGES}
    dev = {f"dev/sampledev.{language}": plain(parts["valid"], language) for language in LANGUAGES}
    test = {}
    for source, target in permutations(LANGUAGES, 2):
        name = f"test-full/sampletest-{source}{target}"
        test[f"{name}-src.{source}.sgm"] = sgm(parts["test"], "src", source, target)
        test[f"{name}-ref.{target}.sgm"] = sgm(parts["test"], "ref", source, target)
    return {"training-parallel-sample.tgz": training, "dev.tgz": dev, "test-full.tgz": test}


def archive(content: Mapping[str, bytes]) -> bytes:
    """Return a .tgz whose bytes depend on the content (and on zlib's version) alone."""
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


def write(archives: Mapping[str, Mapping[str, bytes]], folder: Path) -> None:
    """Write archives into a folder and print what the catalogs say of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in archives.items():
        packed = archive(content)
        temporary = folder / f".{name}.tmp"
        temporary.write_bytes(packed)
        temporary.replace(folder / name)
        print(f"{name}: bytes: {len(packed)}, sha256: {hashlib.sha256(packed).hexdigest()}")


if __name__ == "__main__":
    write(members(splits(read())), Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
