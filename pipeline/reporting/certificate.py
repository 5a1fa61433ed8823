"""The certificate of a run as a section of the report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.reporting.page import Block, Heading, Paragraph, Table

DIGITS = 16
"""Hexadecimal digits of a hash in the report; results/certificate.json has all 64."""


def _updates(averaged: Sequence[int]) -> str:
    return f"updates {', '.join(f'{update:,}' for update in averaged)}" if averaged else "last update"


def section(certificate: Mapping[str, Any]) -> list[Block]:
    """Return the hashes of the steps from the corpus to the score."""
    training, links = certificate["training"], certificate["training"]["links"]

    def short(content: Any) -> str:
        text = content if isinstance(content, str) else hashlib.sha256(json.dumps(content).encode()).hexdigest()
        return text[:DIGITS]

    lines = [
        ("corpus", f"{len(training['data'])} binned files", short(training["data"])),
        ("settings", "of model and training", short(training["job"])),
        ("code", "of the training", training["code"]),
    ]
    if links:
        head = f"update {links[-1]['update']:,}, {len(links):,} links"
        lines.append(("training", head, short(links[-1]["link"])))
    score = " ".join(str(value) for value in certificate["score"].values())
    lines += [
        ("average", _updates(certificate["averaged"]), short(certificate["average"])),
        ("translations", ", ".join(certificate["translations"]), short(certificate["translations"])),
        ("score", score, ""),
        ("certificate", "all of these", short(certificate["seal"])),
    ]
    return [
        Heading("Certificate"),
        Paragraph(
            "The hash of every step from the corpus to the score. `wmt verify` compares them with the files, and "
            "makes the steps again: it trains parts of the training again from kept states, averages, translates and "
            "scores."
        ),
        Table(("step", "of", f"sha256, first {DIGITS} digits"), lines),
    ]
