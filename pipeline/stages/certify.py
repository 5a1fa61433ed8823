"""Write the certificate of the run: the hash of every step from the corpus to the score, for `wmt verify`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nmt.common.files import sha256_of
from nmt.config import SearchSettings
from pipeline.common import stage
from pipeline.common.paths import AVERAGE, AVERAGING, CERTIFICATE, CHAIN, LAST, RAW, SCORES, SUBWORDS, TRANSLATIONS
from pipeline.common.settings import DataSettings, RunSettings, load_section
from pipeline.config.scorer import scorer


def run(tracker: stage.Tracker) -> None:
    """Write results/certificate.json."""
    # Imported here: importing torch takes a second.
    from nmt.common.tensors import WEIGHTS, digest, load_tensors

    data = load_section("data", DataSettings)
    training = stage.read_json(CHAIN)
    references = [
        RAW / f"{role}.{name}.{data.target}" for role, name in (("valid", data.valid.name), ("test", data.test.name))
    ]
    content = {
        "run": load_section("run", RunSettings).model_dump(),
        "training": training,
        "subwords": hashes(SUBWORDS.iterdir()),
        "averaged": averaged(stage.read_json(AVERAGING)),
        "average": digest(load_tensors(AVERAGE / WEIGHTS)),
        "last": digest(load_tensors(LAST / WEIGHTS)),
        "search": load_section("search", SearchSettings).model_dump(),
        "translations": hashes(TRANSLATIONS.iterdir()),
        "references": hashes(references),
        "score": score(stage.read_json(SCORES)),
    }
    stage.write_json(CERTIFICATE, {**content, "seal": seal(content)})
    tracker.tags({"certificate": seal(content)})


def hashes(paths: Iterable[Path]) -> dict[str, str]:
    """Return the sha256 of files by their names, and of the files of folders by their paths."""
    found: dict[str, str] = {}
    for path in sorted(paths):
        if path.is_dir():
            found |= {f"{path.name}/{name}": value for name, value in hashes(path.iterdir()).items()}
        else:
            found[path.name] = sha256_of(path)
    return found


def averaged(record: Mapping[str, Any]) -> list[int]:
    """Return the updates of the averaged checkpoints from results/averaging.json; none where there was none."""
    return [int(update.replace(",", "")) for update in str(record["updates"]).split(", ") if update]


def score(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return the test set's score, its signature and the set from results/scores.json."""
    key = scorer(scores).key
    return {name: scores[name] for name in (key, f"{key}_signature", f"{key}_set")}


def seal(content: Mapping[str, Any]) -> str:
    """Return the sha256 of a certificate's content, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
