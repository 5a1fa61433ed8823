"""Treebanks as parallel text, laid out by the download stage, and scored trees."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nmt.common.files import sha256_of
from nmt.config import InputError
from pipeline.common.settings import DataSettings
from pipeline.corpora import treebanks
from pipeline.stages import download

BANK = "( (S (NP-SBJ (NNP Ann)) (VP (VBZ runs) (NP (-NONE- *))) (. .)) )\n(S (NP (-NONE- *)))\n(TOP (NP (NN dog)))\n"


def data(member: dict[str, Any], target: dict[str, Any] | None = None) -> DataSettings:
    text = {"source": member, "target": target or member}
    texts = {"train": [{"name": "t", **text}], "valid": {"name": "v", **text}, "test": {"name": "e", **text}}
    archive = {"name": "a.tgz", "urls": ["http://h/a.tgz"], "licence": "", "source": ""}
    checks = {"bytes": None, "sha256": None, "md5": None}
    return DataSettings.model_validate({"source": "en", "target": "tree", "archives": [{**archive, **checks}], **texts})


def test_words_and_normalised_trees_stand_line_by_line(tmp_path: Path) -> None:
    for name in ("bank.en", "bank.tree"):
        (tmp_path / name).write_text(BANK, encoding="utf-8")
    count, removed = treebanks.split(tmp_path / "bank.en", tmp_path / "bank.tree", "bank")
    assert (tmp_path / "bank.en").read_text(encoding="utf-8") == "Ann runs .\ndog\n"
    assert (tmp_path / "bank.tree").read_text(encoding="utf-8") == (
        "(S (NP (NNP Ann)) (VP (VBZ runs)) (. .))\n(NP (NN dog))\n"
    )
    assert count == 2
    assert removed == {
        "traces": 2,
        "constituents of traces alone": 3,
        "function tags": 1,
        "outer labels": 1,
        "trees of traces alone": 1,
    }


def test_a_treebank_in_an_archive_is_laid_out(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as tar:
        entry = tarfile.TarInfo("x/bank.mrg")
        entry.size = len(BANK)
        tar.addfile(entry, io.BytesIO(BANK.encode()))
    raw = tmp_path / "raw"
    raw.mkdir()
    settings = data({"archive": "a.tgz", "member": "x/bank.mrg"})
    stats = download.unpack(settings, {"a.tgz": tmp_path / "a.tgz"}, raw)
    assert stats["pairs"] == {"train.t": 2, "valid.v": 2, "test.e": 2}
    assert stats["removed"]["train.t"]["function tags"] == 1
    assert (raw / "test.e.en").read_text(encoding="utf-8") == "Ann runs .\ndog\n"
    assert stats["files"]["test.e.en"]["bytes"] == (raw / "test.e.en").stat().st_size
    assert json.dumps(stats)


def test_a_local_treebank_is_held_to_its_number_of_trees(tmp_path: Path) -> None:
    bank = tmp_path / "bank.mrg"
    bank.write_text(BANK, encoding="utf-8")
    raw = tmp_path / "raw"
    raw.mkdir()
    assert download.unpack(data({"path": str(bank), "lines": 2}), {}, raw)["pairs"]["train.t"] == 2
    with pytest.raises(InputError, match=r"bank.mrg has 2 segments where the catalog says 39,832: make it again"):
        download.unpack(data({"path": str(bank), "lines": 39832}), {}, raw)
    bank.unlink()
    with pytest.raises(InputError, match=r"bank.mrg is missing: make it as its catalog says"):
        download.unpack(data({"path": str(bank), "lines": 2}), {}, raw)


@pytest.mark.parametrize("lines_first", [False, True])
def test_a_treebank_is_one_file_whatever_checks_its_sides_have(tmp_path: Path, *, lines_first: bool) -> None:
    bank, raw = tmp_path / "bank.mrg", tmp_path / "raw"
    bank.write_text(BANK, encoding="utf-8")
    raw.mkdir()
    sha256 = {"path": str(bank), "sha256": sha256_of(bank)}

    def settings(lines: int) -> DataSettings:
        counted = {"path": str(bank), "lines": lines}
        return data(counted, sha256) if lines_first else data(sha256, counted)

    assert download.unpack(settings(2), {}, raw)["pairs"]["train.t"] == 2
    assert (raw / "train.t.en").read_text(encoding="utf-8") == "Ann runs .\ndog\n"
    with pytest.raises(InputError, match=r"bank.mrg has 2 segments where the catalog says 3: make it again"):
        download.unpack(settings(3), {}, raw)


def test_words_and_trees_of_two_files_are_refused() -> None:
    words, trees = {"archive": "a.tgz", "member": "words.en"}, {"archive": "a.tgz", "member": "bank.mrg"}
    with pytest.raises(ValidationError) as refused:
        data(words, trees)
    (error,) = refused.value.errors()
    assert error["msg"] == (
        "Value error, train text t has words.en of the archive a.tgz as source and bank.mrg of the archive a.tgz as "
        "target, but sentences and trees are made of one treebank: give it as both"
    )


def test_a_mistake_in_a_treebank_names_file_and_line(tmp_path: Path) -> None:
    bank = tmp_path / "bank.mrg"
    bank.write_text(BANK + "(S (NN dog)\n", encoding="utf-8")
    raw = tmp_path / "raw"
    raw.mkdir()
    with pytest.raises(InputError, match=r"bank.mrg, line 4: the tree that begins on line 4 lacks 1 of its closing"):
        download.unpack(data({"path": str(bank), "lines": 2}), {}, raw)
