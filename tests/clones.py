"""Copies of this repository in temporary git repositories, with a run that takes seconds."""

import hashlib
import io
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
REAL = ROOT.parent / "shared/real"
needs_real = pytest.mark.skipif(not REAL.exists(), reason="real text (../shared/real) is not here")
STAGES = list(yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"])
SHRUNKEN: dict[str, Any] = {
    "model": {"N": 1, "d_model": 32, "d_ff": 64, "h": 2, "d_k": 16, "d_v": 16},
    "training": {"updates": 12, "tokens": 800, "checkpoint_every": 4, "keep_checkpoints": 2, "validate_every": 6},
    "averaging": {"last": 2},
    "search": {"beam": 2, "max_extra": 2},
}
TINY = {**SHRUNKEN, "subwords": {"merges": 60}}  # for the catalog `tiny`
WORDS = "the old man sees a dog . He did not see it She sleeps well , and we do !"


def tarball(members: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    """Return a .tgz, or with the mode `w:` a .tar, of these files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def write_tiny_corpus(folder: Path, *, further: bool = False) -> None:
    """Write the catalog `tiny`: sixty pairs of the same words, or flat trees; `further` adds the set `tinymedical`."""
    chance, sides = random.Random(5), {}
    for name, lines in (("train", 60), ("valid", 4), ("test", 4)):
        text = [chance.choices(WORDS.split(), k=chance.randrange(3, 9)) for _ in range(lines)]
        for language in ("en", "de", "fr"):
            sides[f"{name}.{language}"] = "".join(f"{' '.join(words)}\n" for words in text)
        leaves = (" ".join(f"(NN {word})" for word in words) for words in text)
        sides[f"{name}.tree"] = "".join(f"(S {each})\n" for each in leaves)
    (folder / "data/catalog").mkdir(parents=True, exist_ok=True)
    packed = folder / "data/tiny.tar"
    # A .tgz has the time at which it was made.
    packed.write_bytes(tarball({name: text.encode() for name, text in sides.items()}, "w:"))

    def text_of(name: str, language: str) -> dict[str, Any]:
        # A treebank has both sides.
        languages = ("tree" if language == "tree" else "en", language)
        source, target = ({"archive": "tiny", "member": f"{name}.{ending}"} for ending in languages)
        return {"name": f"tiny{name}", "source": source, "target": target}

    def tests(language: str) -> Any:
        first, second = (text_of(name, language) for name in ("test", "valid"))
        return [first, {**second, "name": "tinymedical"}] if further else first

    about = {"licence": "none", "source": "here", "bytes": packed.stat().st_size}
    digest = hashlib.sha256(packed.read_bytes()).hexdigest()
    catalog = {
        "description": "Sixty pairs.",
        "archives": {"tiny": {"urls": ["file:data/tiny.tar"], "sha256": digest, **about}},
        "pairs": {
            f"en-{each}": {"train": [text_of("train", each)], "valid": text_of("valid", each), "test": tests(each)}
            for each in ("de", "fr", "tree")
        },
    }
    (folder / "data/catalog/tiny.yaml").write_text(yaml.safe_dump(catalog))


def git(folder: Path, *words: str) -> str:
    """What git says; its commits have an author whatever the user's settings are."""
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(folder: Path = Path()) -> None:
    """Commit all files of a folder, in a new git repository where it is none yet."""
    for words in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "--message", "all")):
        git(folder, *words)


class Clone:
    """A copy of this repository's files in a git repository of its own, made where the folder has none yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if (folder / ".git").exists():
            return
        listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        for name in listed.split("\0"):
            if name and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)  # with its mode
        commit(folder)
        for key, value in (("user.name", "t"), ("user.email", "t@example.org")):
            git(folder, "config", key, value)  # `dvc exp apply` needs them.

    def environment(self) -> dict[str, str]:
        """This one, with this interpreter first and no state from outside."""
        outside = ("WMT_", "DVC_", "MLFLOW_", "NMT_", "PREFECT_", "RANK", "WORLD_SIZE", "COV_")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(outside)}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        return environment

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        variables = self.environment()
        return subprocess.run(words, cwd=self.folder, env=variables, capture_output=True, text=True, check=False)

    def params(self, **changes: Any) -> None:
        path = self.folder / "params.yaml"
        content = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump({**content, **changes}))

    def repro(self, *target: str) -> list[str]:
        """The stages that `dvc repro` ran, up to a target."""
        result = self.run("dvc", "repro", *target)
        assert result.returncode == 0, result.stdout + result.stderr
        return re.findall(r"Running stage '(\w+)'", result.stdout)

    def files(self, *folders: str) -> set[str]:
        return {
            str(path.relative_to(self.folder))
            for folder in folders
            for path in (self.folder / folder).rglob("*")
            if path.is_file() and path.name != ".gitignore"
        }
