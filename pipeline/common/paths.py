"""Paths of the pipeline's inputs and outputs, relative to the repository's root."""

from __future__ import annotations

from pathlib import Path

PARAMS = Path("params.yaml")
DVC_YAML = Path("dvc.yaml")
CONFIG = Path("results/config.yaml")

CATALOGS = Path("data/catalog")
LOCAL = Path("data/local")
RAW = Path("data/raw")
TOKENIZED = Path("data/tokenized")
SUBWORDS = Path("data/subwords")
BINNED = Path("data/binned")
BINNED_STATS = BINNED / "stats.json"

CHECKPOINTS = Path("models/checkpoints")
AVERAGE = Path("models/average")
LAST = Path("models/last")

TRAINING = Path("results/training.json")
CURVES = Path("results/training.csv")
VALIDATION = Path("results/validation.csv")
CHAIN = Path("results/chain.json")
CERTIFICATE = Path("results/certificate.json")
AVERAGING = Path("results/averaging.json")
TRANSLATIONS = Path("results/translations")
SCORES, METRICS = Path("results/scores.json"), Path("results/metrics.json")
ATTENTION = Path("results/attention")
FIGURES = Path("results/figures")
SENTENCES = Path("results/sentences.jsonl")
REPORT, REPORT_HTML = Path("results/report.md"), Path("results/report.html")
