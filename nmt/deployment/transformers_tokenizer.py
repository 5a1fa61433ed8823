"""The tokenizer of a model exported to transformers: its folder has a copy of this module, and nmt as an archive."""

import shutil
import sys
from functools import partial
from importlib import import_module  # noqa: TID251 # see `__init__`
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizer


class TransformersTokenizer(PreTrainedTokenizer):
    """Raw lines to the ids of the training, and back. Methods and attributes are those of the base class."""

    vocab_files_names = {
        name: f"subwords/{name}" for name in ("subwords.yaml", "codes.bpe", "vocabulary.txt", "wordpieces.model")
    } | {"nmt.zip": "nmt.zip"}

    def __init__(self, source_lang: str, target_lang: str, words: dict[str, Any], **options: Any) -> None:
        self.code = options["nmt.zip"]
        sys.path.insert(0, self.code)  # Before another version of nmt that may be installed.
        # transformers takes an import that it can read for a package to install.
        ids, moses, settings, subwords = (
            import_module(f"nmt.{name}") for name in ("ids", "text.moses", "text.settings", "text.subwords")
        )
        self.eos, self.unk = ids.EOS, ids.UNK
        self.folder = Path(options["subwords.yaml"]).parent
        self.subwords = subwords.load(self.folder)
        self.rows = {symbol: row for row, symbol in enumerate(self.subwords.symbols(range(self.subwords.used_rows)))}
        chosen = settings.TokenizerSettings.model_validate(words)
        self.source, self.target = (moses.Moses(language, chosen) for language in (source_lang, target_lang))
        self._switch_to_input_mode()
        super().__init__(source_lang=source_lang, target_lang=target_lang, words=words, **options)

    def __reduce__(self) -> Any:
        """Have the copy open the folder: caches of words cannot be pickled, and another process has no nmt."""
        again = partial(AutoTokenizer.from_pretrained, str(self.folder.parent.resolve()), trust_remote_code=True)
        opened = {"subwords", "source", "target", "side"}
        return again, (), {name: value for name, value in vars(self).items() if name not in opened}

    @property
    def vocab_size(self) -> int:
        return len(self.rows)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.rows)

    def _switch_to_input_mode(self) -> None:
        self.side = self.source

    def _switch_to_target_mode(self) -> None:
        self.side = self.target

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return self.subwords.symbols(self.subwords.encode(self.side.tokenize(text)))

    def _convert_token_to_id(self, token: str) -> int:
        return self.rows.get(token, self.unk)

    def _convert_id_to_token(self, index: int) -> str:
        return self.subwords.symbols([index])[0]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return self.target.detokenize(self.subwords.decode(map(self._convert_token_to_id, tokens)))

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        return [*token_ids_0, *(token_ids_1 or []), self.eos]

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        out = Path(save_directory) / "subwords"
        if out.resolve() != self.folder.resolve():
            shutil.copytree(self.folder, out, dirs_exist_ok=True)
            shutil.copyfile(self.code, Path(save_directory) / "nmt.zip")
        return tuple(map(str, out.iterdir()))
