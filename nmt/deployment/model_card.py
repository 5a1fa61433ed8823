"""The model card of an exported model: README.md, with the metadata that Hugging Face's hub reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from nmt.inference.model_folder import ModelDescription

_CARD = """---
{metadata}---

# {name}

The Transformer of "Attention Is All You Need" for translation from `{source}` to `{target}`: row `{row}`, corpus
`{corpus}`, seed {seed}, {weights}. N = {N}, d_model = {d_model}, d_ff = {d_ff}, h = {h}.

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("."{trust})
model = AutoModelForSeq2SeqLM.from_pretrained(".")
batch = tokenizer(["..."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch, num_beams=1), skip_special_tokens=True))
```
{code}
{scores}

With `num_beams=1` translations are those of `wmt translate --beam 1`, unless two subwords are almost equally likely
(LayerNorm adds 1e-5 here, and added 1e-6 in training), or the run ended one, {max_extra} subwords longer than its
source. Beam search differs: transformers divides the log-probability of a translation Y by |Y|^{alpha}, the run by
((5 + |Y|) / 6)^{alpha} (Wu et al. 2016); it also ends by another rule. No score here is of transformers' search.

Limits: a sentence may have 1,024 subwords, more are an IndexError. The model translates sentence by sentence, and knows
the kind of text that it was trained on. Of other text it makes fluent nonsense without a sign. It repeats the biases of
its corpus. Licences of that corpus: {licences}.
"""
_TRUST = """
`trust_remote_code=True` lets code of this folder run (in `nmt.zip`, too), which splits words by Moses' rules and merges
subwords: read it first. It needs `pip install sacremoses subword-nmt sentencepiece pydantic`.
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
    scores = "Scores: none were at hand when this folder was written."
    if run:
        metric = {"type": "bleu", "value": round(run["bleu"], 2), "name": f"sacreBLEU {run['bleu_signature']}"}
        dataset = {"type": str(origin["corpus"]), "name": run["bleu_set"]}
        result = {"task": {"type": "translation"}, "dataset": dataset, "metrics": [metric]}
        metadata["model-index"] = [{"name": name, "results": [result]}]
        scores = (
            f"Scores: sacreBLEU {run['bleu']:.1f} (95% interval {run['bleu_low']:.1f} to {run['bleu_high']:.1f}) on "
            f"{run['bleu_set']}:\n`{run['bleu_signature']}`.\nThe run's certificate: `{run['certificate']}`."
        )
    return _CARD.format_map(
        origin
        | description.model.model_dump()
        | {"source": description.source, "target": description.target, "name": name, "scores": scores}
        | {"trust": ", trust_remote_code=True" if has_code else "", "code": _TRUST if has_code else ""}
        | description.search.model_dump()
        | {"metadata": yaml.safe_dump(metadata, sort_keys=False)}
        | {"licences": "; ".join(run["licences"]) if run else "not known here"}
    )
