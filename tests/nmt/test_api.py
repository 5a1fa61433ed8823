"""The public API: nmt/README.md's Python runs as it stands, and wrong calls get a sentence."""

import fcntl
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from model_folders import folder_of, parser_of
from refusals import check_refusal

import nmt
from nmt.fitting import MODEL, TRAINING
from nmt.inference.model_folder import load_description
from nmt.training import checkpoint
from pipeline.config import rows

ROOT = Path(__file__).parents[2]
PAIRS = (["ab b", "b ab"], ["xyz y", "y xyz"])
TINY = {"N": 1, "d_model": 8, "d_ff": 8, "h": 2}


def test_the_readmes_python_runs(here: Path) -> None:
    folder_of(here / "models/average")
    blocks = re.findall(r"(?ms)^```python\n(from.*?|import torch.*?)^```$", (ROOT / "nmt/README.md").read_text())
    namespace: dict[str, object] = {}
    exec("".join(blocks), namespace)
    assert {name for name in nmt.__all__ if name not in {*namespace, "Transformer", "__version__"}} == set()
    assert isinstance(namespace["model"], nmt.Transformer)
    assert [hasattr(nmt, name) for name in ("__version__", "Trainer")] == [True, False], "what is not public is none"
    assert not list(here.glob("models/*.training"))


def test_the_defaults_are_row_base_on_one_device() -> None:
    base = rows.settings("base", "en-de")
    fixed = {"d_k": 64, "d_v": 64, "sharing": "all"}
    assert {**MODEL, **fixed} == base["model"]
    differing = {"shards": 1, "precision": "float32"}
    added = {"arithmetic", "deterministic", "patience", "r_drop", "validation_sample", "verify_every", "keep_states"}
    added.add("ema_decay")
    assert {name: value for name, value in base["training"].items() if name not in added} | differing == TRAINING


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pairs": (["a"], [])}, "1 sentences have 0 translations: give one for each"),
        ({"pairs": (["a", ""], ["", "x"])}, "no pair of `pairs` has text on both sides and at most 256 subwords"),
        ({"valid": ([], [])}, "no pair of `valid` has text on both sides and at most 256 subwords on each"),
        ({"training": {"epochs": 3}}, "training.epochs is 3; extra"),
        *(
            ({"training": {"arithmetic": "portable", name: value}}, "needs training.precision float32, training.r_drop")
            for name, value in (("precision", "bfloat16"), ("r_drop", 5.0), ("ema_decay", 0.9))
        ),
        ({"training": {"start_from": {"folder": "there"}}}, "`fit` itself has the argument start_from"),
        ({"pairs": ("ab", "xy")}, "a string in place of a list"),
        ({"folder": "there/file/new"}, "new.training/made_of cannot be written"),
        ({"pairs": [("ab", "xyz")] * 4}, "two lists, of sentences and of translations: one has 4"),
        ({"model": TINY | {"positions": "learned", "max_positions": 32}}, "may have 50 subwords more: raise it to at"),
        ({"languages": ("english", "german")}, "languages is ('english', 'german'): give two"),
        ({"folder": "there"}, "there exists: give the name of a new folder"),
        ({"folder": "there/.."}, "exists: give the name of a new folder"),
        ({"valid": (["a"], ["x\udcff y"])}, r"a sentence is no text of Unicode, 'x\udcff y', as of undecoded bytes"),
    ],
)
def test_a_wrong_call_gets_a_sentence(here: Path, given: dict[str, object], message: str) -> None:
    Path("there").mkdir()
    Path("there/file").touch()
    call = {"pairs": PAIRS, "valid": PAIRS, "folder": "new", "merges": 1, "model": TINY, **given}
    assert message in check_refusal("", nmt.fit, **call)
    assert [path.name for path in here.iterdir()] == ["there"]


def test_fit_takes_the_tokenizer_and_subwords_of_the_pipeline(tmp_path: Path) -> None:
    chinese = (["你好，世界。", "我 爱你。"], ["Hello, world.", "I love you."])
    call = {"pairs": chinese, "valid": chinese, "languages": ("zh", "en"), "model": TINY, "training": {"updates": 1}}
    made = nmt.fit(**call, folder=tmp_path / "raw", subwords={"vocabulary": 300, "split_digits": True})
    assert made.description.tokenizer.tokenizer == "none"
    assert (made.model.subwords.settings.kind, made.model.subwords.settings.split_digits) == ("wordpieces", True)
    assert [made.model.encode(blank) for blank in ("", " ", "\r", "\u2003\t", "\u200b \ufeff")] == [[]] * 5
    tagged = {"merges": None, "vocabulary": 300, "kind": "wordpieces", "user_defined_symbols": ["<2d>"]}
    for given, message in (
        ({"tokenizer": {"tokenizer": "moses"}}, "Moses' tokenizer does not restore this text: set tokenizer.tokenizer"),
        ({"tokenizer": {"tokenizer": "vinyals"}}, "`fit` trains no parser"),
        ({"pairs": PAIRS, "subwords": tagged}, "would tear"),
        ({"start_from": tmp_path / "raw", "subwords": {"vocabulary": 300}}, "with start_from, languages, tokenizer"),
        ({"start_from": tmp_path / "raw", "languages": ("de", "en")}, "with start_from, languages, tokenizer"),
    ):
        check_refusal(re.escape(message), nmt.fit, **call | {"folder": tmp_path / "other"} | given)
    bpe = nmt.fit(**call, folder=tmp_path / "b", tokenizer={"tokenizer": "none"}, subwords={"kind": "bpe", "merges": 3})
    assert bpe.model.subwords.settings.kind == "bpe"
    # As `readlines` gives them: blank lines are no text, and a no-break space is a character of its word.
    french = (["ça\u00a0: va\n", " \n", "\n", "va\n"], ["ça\u00a0: va", "a", "b", "va"])
    settings = {"subwords": {"kind": "bpe", "merges": 3}, "tokenizer": {"tokenizer": "none"}}
    kept = nmt.fit(french, french, tmp_path / "c", model=TINY, training={"updates": 1}, **settings).model
    assert kept.subwords.symbols(kept.subwords.encode("ça\u00a0: va")).count("<unk>") == 0
    assert "\n" not in "".join(kept.subwords.symbols(range(kept.subwords.used_rows)))
    assert (tmp_path / "c/subwords/words.txt").read_text().split() == ["va", "ça"]


def test_fit_starts_from_another_models_weights_and_subwords(tmp_path: Path) -> None:
    parent = folder_of(tmp_path / "parent", target="fr")
    call = {"pairs": PAIRS, "valid": PAIRS, "folder": tmp_path / "mine", "start_from": parent}
    check_refusal(r"parent cannot be started from: model.N is 1, the parent's is 2", nmt.fit, **call, model={"N": 1})
    check_refusal("is a parser, which", nmt.fit, **call | {"start_from": parser_of(tmp_path / "parser", "vinyals")})
    short = {"positions": "learned", "max_positions": 60}  # enough for the translations of short sentences
    assert nmt.fit(PAIRS, PAIRS, tmp_path / "short", merges=1, model=TINY | short, training={"updates": 1}).longest == 9
    # After one update at a rate of almost 0.
    nmt.fit(**call, training={"updates": 1, "learning_rate_scale": 1e-20})
    torch.testing.assert_close(nmt.load(tmp_path / "mine").state_dict(), nmt.load(parent).state_dict())
    both = [{path.name: path.read_bytes() for path in (one / "subwords").iterdir()} for one in (parent, call["folder"])]
    assert both[0] == both[1]
    assert load_description(tmp_path / "mine").target == "fr"
    (parent / "model.safetensors").unlink()
    check_refusal("parent holds no model.safetensors: start from", nmt.fit, **call | {"folder": tmp_path / "other"})


def test_a_training_resumes_and_is_of_its_own_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = tmp_path / "models"  # It does not exist yet.
    call = {"valid": PAIRS, "folder": models / "mine", "merges": 1, "model": TINY, "training": {"updates": 3}}
    with monkeypatch.context() as patch:
        patch.setattr("nmt.fitting.save_model", Mock(side_effect=OSError("no room")))
        with pytest.raises(OSError, match="no room"):
            nmt.fit(PAIRS, **call)
    assert checkpoint.last_saved_update(models / "mine.training") == 3
    for changed in ({"pairs": (PAIRS[1], PAIRS[0])}, {"merges": 2}, {"languages": ("de", "en")}):
        check_refusal("training of other text or settings", nmt.fit, **{"pairs": PAIRS, **call, **changed})
    with (models / "mine.training/lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        check_refusal("another process trains in .*mine.training: wait for its end", nmt.fit, PAIRS, **call)
    (models / "mine.training/made_of").rename(tmp_path / "made_of")  # As after a kill before it was written.
    check_refusal("", nmt.fit, PAIRS, **call)
    (tmp_path / "made_of").rename(models / "mine.training/made_of")
    # Where an error ended a training before its first saved state, the mended call begins anew.
    long, learned = (["ab " * 60], ["x"]), TINY | {"positions": "learned", "max_positions": 52}
    call_long = call | {"folder": tmp_path / "long"}
    check_refusal("but model.max_positions is 52: raise that", nmt.fit, long, **call_long | {"model": learned})
    nmt.fit(long, **call_long | {"model": learned | {"max_positions": 256, "d_model": "8"}})
    monkeypatch.chdir(models)
    with ThreadPoolExecutor(1) as pool:  # Signals are for the main thread alone.
        pool.submit(nmt.fit, PAIRS, **call | {"folder": "mine"}).result()
    assert [path.name for path in models.iterdir()] == ["mine"]
