"""Translate the validation set with the last weights (Table 3) and the test sets with the average (Table 2)."""

import torch

from nmt.common.files import write_json, writing
from nmt.errors import tell
from nmt.inference.engine import Engine
from nmt.inference.loading import LoadedModel
from nmt.inference.settings import SearchSettings
from nmt.inference.translator import Translator
from nmt.text.parallel_text import read_lines
from nmt.training.settings import TrainingSettings
from pipeline.config.corpora import DataSettings
from pipeline.config.paths import AVERAGE, LAST, TRANSLATIONS, raw, translation
from pipeline.config.sections import check_versions, load_section


def run() -> None:
    """Write results/translations: `<validation set>.last.<language>`, `<test set>.average.<language>`.

    With portable arithmetic, as the training, they are the same on any processor. Beside trees, a file whose name ends
    in `.repairs.json` counts the repairs that made them trees.
    """
    data = load_section("data", DataSettings)
    check_versions("sacremoses", "subword_nmt", "sentencepiece")
    search, kind = load_section("search", SearchSettings), load_section("training", TrainingSettings).arithmetic
    with writing(TRANSLATIONS, folder=True) as temporary:
        tests = [text.name for text in data.test]
        for role, names, folder in (("valid", [data.valid.name], LAST), ("test", tests, AVERAGE)):
            model = LoadedModel(folder, torch.device("cpu") if kind == "portable" else None)
            engine = Engine(model, kind)
            for name in names:
                source = raw(role, name, data.source)
                out = temporary / translation(name, folder, data.target).name
                translator = Translator(model, settings=search, engine=engine)
                translator.skipped = []
                with out.open("w", encoding="utf-8", newline="\n") as file:
                    file.writelines(f"{text}\n" for text in translator.translate(read_lines(source)))
                if translator.skipped:
                    count = f"{len(translator.skipped):,} too long lines have an empty output"
                    tell(f"warning: {source}: {count}; the first: {translator.skipped[0]}")
                if translator.repairs:
                    write_json(out.with_name(f"{out.name}.repairs.json"), translator.repairs)
