"""The model card of an exported model: README.md, with the metadata that Hugging Face's hub reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nmt.inference.model_folder import ModelDescription
from nmt.task import task_in

_TRUST = """
`trust_remote_code=True` lets code of this folder run (in `nmt.zip`, too), which makes subwords of text:
read it first. It needs `pip install sacremoses subword-nmt sentencepiece pydantic`.
"""


def card(description: ModelDescription, run: Mapping[str, Any] | None, *, has_code: bool) -> str:
    """Return the model card.

    `run`: the keys of results/scores.json, the `licences` of the corpus' archives and the hash of the `certificate`.
    `has_code`: the tokenizer is code.
    """
    origin = {key: description.origin.get(key, "unknown") for key in ("row", "corpus", "seed", "weights")}
    name = "transformer-{}-{}-{}-{}".format(origin["row"], origin["corpus"], description.source, description.target)
    # `other`: every licence that is not on the hub's list.
    licence = "apache-2.0" if run and run["licences"] == ["Apache-2.0"] else "other"
    metadata: dict[str, Any] = {"language": [description.source, description.target], "license": licence}
    metadata |= {"library_name": "transformers", "pipeline_tag": "translation"}
    scores = "Scores: not available when this folder was written."
    if run:
        task = task_in(run)
        key, title = task.key, task.title
        score, low, high, signature, tested = (run[key + end] for end in ("", "_low", "_high", "_signature", "_set"))
        metric = {"type": key, "value": round(score, 2), "name": f"{title} {signature}"}
        dataset = {"type": str(origin["corpus"]), "name": tested}
        result = {"task": {"type": "translation"}, "dataset": dataset, "metrics": [metric]}
        metadata["model-index"] = [{"name": name, "results": [result]}]
        scores = (
            f"Scores: {title} {score:.1f} (95% interval {low:.1f} to {high:.1f}) on {tested}:\n`{signature}`.\n"
            f"The run's certificate: `{run['certificate']}`."
        )
    template = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    return template.format_map(
        origin
        | description.model.model_dump()
        | {"source": description.source, "target": description.target, "name": name, "scores": scores}
        | {"trust": ", trust_remote_code=True" if has_code else "", "code": _TRUST if has_code else ""}
        | description.search.model_dump()
        | {"metadata": yaml.safe_dump(metadata, sort_keys=False)}
        | {"licences": "; ".join(run["licences"] if run else ()) or "not known here"}
    )
