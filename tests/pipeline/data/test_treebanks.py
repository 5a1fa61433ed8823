from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mirror import tarball

from nmt.common.files import sha256_of
from nmt.errors import InputError
from pipeline.config.corpora import DataSettings
from pipeline.stages import download

BANK = "( (S (NP-SBJ (NNP Ann)) (VP (VBZ runs) (NP (-NONE- *))) (. .)) )\n(S (NP (-NONE- *)))\n(TOP (NP (NN dog)))\n"


def data(member: dict[str, Any], target: dict[str, Any] | None = None) -> DataSettings:
    text = {"source": member, "target": target or member}
    texts = {"train": [{"name": "t", **text}], "valid": {"name": "v", **text}, "test": {"name": "e", **text}}
    archive = {"name": "a.tgz", "urls": ["http://h/a.tgz"], "licence": "", "source": ""}
    checks = {"bytes": None, "sha256": None, "md5": None}
    return DataSettings.model_validate({"source": "en", "target": "tree", "archives": [{**archive, **checks}], **texts})


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    (tmp_path / "bank.mrg").write_text(BANK, encoding="utf-8")
    return tmp_path / "bank.mrg"


def test_words_and_normalised_trees_stand_line_by_line(tmp_path: Path, bank: Path) -> None:
    (tmp_path / "a.tgz").write_bytes(tarball({"x/bank.ptb": bank.read_bytes()}))
    raw = tmp_path / "raw"
    settings = data({"archive": "a.tgz", "member": "x/bank.ptb"})
    stats = download.unpack(settings, {"a.tgz": tmp_path / "a.tgz"}, raw)
    assert stats["pairs"] == {"train.t": 2, "valid.v": 2, "test.e": 2}
    assert stats["removed"]["train.t"] == {
        "traces": 2,
        "constituents of traces alone": 3,
        "function tags": 1,
        "outer labels": 1,
        "trees of traces alone": 1,
    }
    trees = (raw / "valid.v.tree").read_text(encoding="utf-8")
    assert trees == "(S (NP (NNP Ann)) (VP (VBZ runs)) (. .))\n(NP (NN dog))\n"
    assert (raw / "test.e.en").read_text(encoding="utf-8") == "Ann runs .\ndog\n"
    assert stats["files"]["test.e.en"]["bytes"] == (raw / "test.e.en").stat().st_size
    assert json.dumps(stats)


@pytest.mark.parametrize("checked", ["by its lines", "by lines and sha256", "by sha256 and lines"])
def test_a_local_treebank_is_held_to_its_number_of_trees(tmp_path: Path, bank: Path, checked: str) -> None:
    """It is one file, whatever checks its two sides have."""
    sha256 = {"path": str(bank), "sha256": sha256_of(bank)}

    def settings(lines: int) -> DataSettings:
        counted = {"path": str(bank), "lines": lines}
        pairs = {"by lines and sha256": (counted, sha256), "by sha256 and lines": (sha256, counted)}
        return data(*pairs.get(checked, (counted,)))

    assert download.unpack(settings(2), {}, tmp_path / "raw")["pairs"]["train.t"] == 2
    assert (tmp_path / "raw/train.t.en").read_text(encoding="utf-8") == "Ann runs .\ndog\n"
    with pytest.raises(InputError, match=r"bank.mrg has 2 segments where the catalog says 39,832: make it again"):
        download.unpack(settings(39_832), {}, tmp_path / "raw")
    bank.unlink()
    with pytest.raises(InputError, match=r"bank.mrg is missing: "):
        download.unpack(settings(2), {}, tmp_path / "raw")


def test_a_mistake_in_a_treebank_names_file_and_line(tmp_path: Path, bank: Path) -> None:
    bank.write_text(BANK + "(S (NN dog)\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"bank.mrg, line 4: the tree that begins on line 4 lacks 1 of its closing"):
        download.unpack(data({"path": str(bank), "lines": 2}), {}, tmp_path / "raw")
