"""Translate the validation set with the last weights (Table 3) and the test set with the average (Table 2)."""

from __future__ import annotations

from pathlib import Path

from nmt.common.files import write_json, writing
from nmt.config import SearchSettings
from pipeline.config.paths import AVERAGE, LAST, RAW, TRANSLATIONS
from pipeline.config.settings import DataSettings, check_versions, load_section

REPAIRS = ".repairs.json"
"""Ends the name of the file that counts repairs of a set's translations, beside them; without repairs, no file."""


def run() -> None:
    """Write results/translations: `<validation set>.last.<language>` and `<test set>.average.<language>`."""
    data = load_section("data", DataSettings)
    search = load_section("search", SearchSettings)
    check_versions("sacremoses", "subword_nmt", "sentencepiece")
    with writing(TRANSLATIONS) as temporary:
        temporary.mkdir()
        for split, name, model in (("valid", data.valid.name, LAST), ("test", data.test.name, AVERAGE)):
            source = RAW / f"{split}.{name}.{data.source}"
            out = temporary / f"{name}.{model.name}.{data.target}"
            if repairs := translate(model, search, source, out):
                write_json(out.with_name(out.name + REPAIRS), repairs)


def translate(model: Path, search: SearchSettings, source: Path, out: Path) -> dict[str, int]:
    """Translate a file with a model folder, line by line; return what had to be repaired in the output, by name."""
    # Imported here: importing torch takes a second.
    from nmt.inference.translator import Translator
    from nmt.text.parallel_text import read_lines

    translator = Translator(model, settings=search)
    with out.open("w", encoding="utf-8", newline="\n") as file:
        for text in translator.translate(read_lines(source)):
            file.write(text + "\n")
    return dict(translator.repairs)
