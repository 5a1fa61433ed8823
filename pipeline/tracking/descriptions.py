"""What MLflow's pages say in words: descriptions of runs, registered models and their versions, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from humanize import precisedelta

from pipeline.config.scorer import scorer, scorer_of

LANGUAGES = {"en": "English", "de": "German", "fr": "French", "tree": "constituency trees"}


def of_run(described: Mapping[str, Any], stages: Mapping[str, Any], scores: Mapping[str, Any]) -> str:
    """Return a run's scores and cost, or the stage that it has come to, and where its results are."""
    states = [f"The last stage, `{name}`: {stage['status']}." for name, stage in stages.items()]
    state = " ".join(["Not scored yet.", *states[-1:]])
    settings = ", ".join(f"`{key}` = {value}" for key, value in described["settings"].items())
    lines = [_scores(scores) if scores else state]
    if "train_seconds" in scores:
        lines.append(_cost(scores))
    if settings:
        lines.append(f"Other than in the row: {settings}.")
    if scores:
        lines.append("The report, all translations and the attention are under Artifacts.")
    if name := described["tags"].get("DVC_EXP_NAME"):
        lines.append(f"`dvc exp apply {name}` brings it into the repository.")
    return "\n\n".join(lines)


def of_model(name: str, pair: str) -> str:
    """Return what a registered model does and how to call it."""
    source, target = (LANGUAGES[language] for language in pair.split("-"))
    by = scorer_of(pair)
    does, scored = f"{by.verb.capitalize()}s {source} into {target}", f"{by.title} on the validation set"
    return f"""{does}. A list of raw sentences in, as many strings out; subwords, tokeniser and code are inside.

```python
model = mlflow.pyfunc.load_model("models:/{name}@best")
model.predict(["The old man sees the dog."], params={{"beam": 4}})
```

```sh
mlflow models serve --env-manager local -m models:/{name}@best -p 5001
curl http://127.0.0.1:5001/invocations -H 'Content-Type: application/json' \\
    -d '{{"inputs": ["The old man sees the dog."], "params": {{"beam": 4}}}}'
```

The alias `best` is the version with the highest {scored}, never on the test set. The description of each version has \
its scores, its data and their licences."""


def of_version(configuration: Mapping[str, Any], scores: Mapping[str, Any]) -> str:
    """Return the scores of a model, what it was trained on, and the licences of that text."""
    run, data = configuration["run"], configuration["data"]
    trained = ", ".join(text["name"] for text in data["train"])
    licences = [f"- {archive['name']}: {archive['licence']} ({archive['source']})" for archive in data["archives"]]
    licences += ["- files of your own, without a recorded licence"] * any(
        text["source"]["path"] for text in data["train"]
    )
    about = f"Row `{run['row']}`, corpus `{run['corpus']}`, seed {run['seed']}. Trained on {trained}."
    return "\n\n".join([_scores(scores), about, "Licences of the data:", "\n".join(licences)])


def _scores(scores: Mapping[str, Any]) -> str:
    """Return the score of the test set with its interval, and that of the validation set."""
    by = scorer(scores)
    test = f"{by.title} {scores[by.key]:.1f}"
    if f"{by.key}_low" in scores:
        test += f" (95% interval {scores[f'{by.key}_low']:.1f} to {scores[f'{by.key}_high']:.1f})"
    sentences = [f"{test} on {scores.get(f'{by.key}_set', 'the test set')}, by {by.program}."]
    if f"{by.key}_valid" in scores:
        valid_set = scores.get(f"{by.key}_valid_set", "the validation set")
        sentences.append(f"Last checkpoint: {by.title} {scores[f'{by.key}_valid']:.1f} on {valid_set}.")
    if "ppl_valid" in scores:
        sentences.append(f"Perplexity per {by.unit} of the validation set: {scores['ppl_valid']:.2f}.")
    return " ".join(sentences)


def _cost(scores: Mapping[str, Any]) -> str:
    return (
        f"{scores['updates']:,} updates of {scores['params']:,} parameters took "
        f"{precisedelta(round(scores['train_seconds']))} on {scores['devices']} x {scores['device']}: "
        f"{scores['train_flops_counted']:.1e} FLOPs counted, {scores['train_flops_paper']:.1e} the paper's way."
    )
