"""Training on two lists of sentences, without the pipeline around it: `nmt.fit`."""

import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from nmt import codec
from nmt.common.files import output_file, sha256_of
from nmt.common.processes import is_held, sharing
from nmt.common.tensors import WEIGHTS, load_tensors
from nmt.errors import InputError, explained
from nmt.ids import EOS
from nmt.inference.model_folder import ModelDescription, load_description, save_model
from nmt.inference.settings import SearchSettings
from nmt.inference.translator import Translator
from nmt.model_settings import FREE
from nmt.schema import LANGUAGE
from nmt.text import words as seen_words
from nmt.text.moses import MOST_CHANGED, SAMPLE, Moses
from nmt.text.parallel_text import is_blank
from nmt.text.settings import SubwordSettings, TokenizerSettings, one_size
from nmt.text.subwords import Subwords
from nmt.training import checkpoint
from nmt.training.distributed import World
from nmt.training.loop import train
from nmt.training.settings import Job
from nmt.training.state import START

TOKENIZER: Mapping[str, Any] = {"tokenizer": "moses", "normalize_punctuation": False, "aggressive_hyphens": False}
WORD_PIECES = {"kind": "wordpieces", "vocabulary": 32_000}  # the subwords of raw text
SEARCH = SearchSettings(beam=4, alpha=0.6, max_extra=50, stop="exact")
MODEL: Mapping[str, Any] = {
    "N": 6, "d_model": 512, "d_ff": 2048, "h": 8, "P_drop": 0.1, "attention_dropout": 0.0, "relu_dropout": 0.0,
    "positions": "sinusoidal", "position_layout": "interleaved", "max_positions": 512,
    "projection_biases": True, "initialisation": "fairseq",
}  # fmt: skip
"""Row base of Table 3; by default d_k and d_v are d_model / h, as in section 3.2.2."""
TRAINING: Mapping[str, Any] = {
    "updates": 100_000, "tokens": 25_000, "shards": 1, "warmup_steps": 4000, "learning_rate_scale": 1.0, "beta1": 0.9,
    "beta2": 0.98, "epsilon": 1e-9, "eps_ls": 0.1, "precision": "float32", "seed": 1, "validate_every": 1000,
    "checkpoint_every": 1500, "keep_checkpoints": 5, "resume_minutes": 10.0,
}  # fmt: skip
"""The regime of section 5, in one shard."""
LONGEST = 256  # the most subwords of a sentence, its end included
LOCK = "lock"  # the file, in the folder of a training, that its process holds
Pairs = Sequence[Sequence[str]]  # two lists: sentences, and their translations in the same order


def fit(  # noqa: PLR0913 - settings, by name
    pairs: Pairs,
    valid: Pairs,
    folder: str | Path,
    *,
    languages: tuple[str, str] | None = None,
    merges: int = 32_000,
    tokenizer: Mapping[str, Any] | None = None,
    subwords: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    start_from: str | Path | None = None,
) -> Translator:
    """Train on one device, write the average of the last checkpoints as the model folder `folder`, and open it.

    `languages`, two ISO 639 codes, are English and German by default. `model` and `training` change values of MODEL,
    which is row base, and of TRAINING; `tokenizer` and `subwords` take keys as in the pipeline. By default, text that
    Moses restores gets its tokens (TOKENIZER) and joint BPE with `merges`, other text 32,000 word pieces (WORD_PIECES).
    Pairs with an empty side, or more than LONGEST subwords on one, are dropped.
    `start_from`, a model folder, gives first weights, languages, tokenizer, subwords and sizes. `<folder>.training`
    holds the training until its end: after a kill, the same call resumes it. Raises InputError if `folder` exists or
    cannot be written, `<folder>.training` is another process's or of other text or settings, the lists of `pairs` or
    `valid` differ in length, all of their pairs are dropped, a setting is wrong, Moses is chosen for text that it does
    not restore, or the model to start from is missing, is a parser or has other sizes.
    """
    folder = Path(folder).resolve()
    if folder.exists():
        raise InputError(f"{folder} exists: give the name of a new folder")
    work = folder.with_name(f"{folder.name}.training")
    output_file(work / "made_of")
    if "start_from" in (training or {}):
        raise InputError("training.start_from is the pipeline's: `fit` itself has the argument start_from")
    parent = None if start_from is None else Path(start_from)
    described = None if parent is None else load_description(parent)
    begun = None if parent is None else _start(parent)
    pair = (described.source, described.target) if described else ("en", "de")
    languages = languages or pair
    if described and (tokenizer or subwords or tuple(languages) != pair):
        raise InputError("with start_from, languages, tokenizer and subwords are the parent's: leave them out")
    if len(languages) != 2 or not all(re.fullmatch(LANGUAGE, str(language)) for language in languages):
        raise InputError(f"languages is {languages!r}: give two ISO 639 codes, as ('en', 'de')")
    for both in (pairs, valid):
        _check_text(both)
    words, pieces = _chosen(
        () if described else pairs,  # The parent's tokenizer stays, whatever it does to this text.
        languages, described.tokenizer.model_dump() if described else tokenizer, subwords, merges,
    )  # fmt: skip
    tokenised = [_tokenised(both, languages, words) for both in (pairs, valid)]
    counts = [seen_words.count(side) for side in tokenised[0]]
    vocabulary, start = begun or (codec.learn(counts[0], counts[1], pieces)[0], {})
    defaults = described.model.model_dump() if described else MODEL
    job = _job({**defaults, **(model or {})}, {**TRAINING, **(training or {}), **start}, vocabulary.size, work)
    if described and (differences := job.model.misfits(described.model, "model", FREE)):
        raise InputError(f"{parent} cannot be started from: {'; '.join(differences)}")
    batches = [_encoded(*argument, vocabulary) for argument in zip(("pairs", "valid"), tokenised, strict=True)]
    settings = job.model_dump(exclude={"corpus": True, "training": {"start_from": {"folder"}}})  # no path of a folder
    decisive = settings, languages, tokenised, vocabulary.symbols(range(vocabulary.used_rows))
    made_of = hashlib.sha256(repr(decisive).encode()).hexdigest()
    description = ModelDescription(
        source=languages[0], target=languages[1], vocabulary=vocabulary.size, tokenizer=words, model=job.model,
        search=SEARCH, origin={"made by": "nmt.fit", "updates": job.training.updates},
    )  # fmt: skip
    work.mkdir(parents=True, exist_ok=True)
    if is_held(work / LOCK):
        raise InputError(f"another process trains in {work}: wait for its end, or name another folder")
    with sharing(work / LOCK):
        if folder.exists():
            raise InputError(f"{folder} exists by now: another process made it")
        _fill(work, made_of, vocabulary, batches, parent)
        seen_words.save(work / "subwords", counts[0], languages[0], parent and parent / "subwords")
        save_model(folder, _trained(job, work), description, work / "subwords")
        shutil.rmtree(work, ignore_errors=True)  # NFS keeps an open file, as the lock, in its folder.
    return Translator(folder)


def _fill(
    work: Path, made_of: str, vocabulary: Subwords, batches: Sequence[pa.RecordBatch], parent: Path | None
) -> None:
    """Write what a training reads into its folder; raise InputError if that is of other text or settings."""
    known = work / "made_of"
    recorded = known.read_text(encoding="utf-8") if known.exists() else None
    if recorded != made_of and {path.name for path in work.iterdir()} != {LOCK}:
        raise InputError(f"{work} holds a training of other text or settings: name another folder, or remove that one")
    known.write_text(made_of, encoding="utf-8")
    vocabulary.save(work / "subwords")
    if parent:
        shutil.copyfile(parent / WEIGHTS, work / START)
    for name, batch in zip(("train.00000", "valid"), batches, strict=True):
        with pa.ipc.new_file(work / f"{name}.arrow", batch.schema) as file:
            file.write_batch(batch)


def _trained(job: Job, work: Path) -> dict[str, torch.Tensor]:
    """Train in the folder `work`; return the average of the checkpoints or, without any, the last weights."""
    ordinary = job.training.arithmetic == "ordinary"  # Portable arithmetic is for CPUs alone.
    device = torch.device("cuda" if ordinary and torch.cuda.is_available() else "cpu")
    torch.set_flush_denormal(ordinary)  # Tiny moments of Adam are slow numbers.
    try:
        finished = train(job, work, World(0, 1, device))
    except BaseException:
        if checkpoint.latest_resume(work) is None:
            # There is nothing to resume: a call with mended settings begins anew.
            shutil.rmtree(work, ignore_errors=True)
        raise
    finally:
        torch.set_flush_denormal(False)
    if not finished:
        raise KeyboardInterrupt
    paths, newest = checkpoint.checkpoints(work / "checkpoints"), checkpoint.latest_resume(work)
    return checkpoint.average(paths) if paths or newest is None else load_tensors(newest / WEIGHTS)


def _start(parent: Path) -> tuple[Subwords, dict[str, Any]]:
    """Return the subwords of a model folder, and the setting that names its weights."""
    vocabulary, target = codec.load(parent / "subwords")
    if target is not vocabulary:
        raise InputError(f"{parent} is a parser, which `fit` does not train: use the pipeline's training.start_from")
    if not (parent / WEIGHTS).is_file():
        raise InputError(f"{parent} holds no {WEIGHTS}: start from a model folder, such as models/average")
    return vocabulary, {"start_from": {"folder": str(parent), "weights": sha256_of(parent / WEIGHTS)}}


def _chosen(
    pairs: Pairs,
    languages: tuple[str, str],
    tokenizer: Mapping[str, Any] | None,
    subwords: Mapping[str, Any] | None,
    merges: int,
) -> tuple[TokenizerSettings, SubwordSettings]:
    """Return the settings of tokenizer and subwords; raise InputError where one is wrong, or Moses tears the text."""
    base = {"kind": "bpe", "merges": merges, "vocabulary": None, "multiple_of": 64}
    with explained("", ": change it"):
        words = TokenizerSettings.model_validate({**TOKENIZER, **(tokenizer or {})})
        sides = zip(languages, pairs, strict=False) if words.tokenizer == "moses" else ()
        if any(Moses(language, words).changed(side[:SAMPLE]) > MOST_CHANGED for language, side in sides):
            if tokenizer:
                raise InputError("Moses' tokenizer does not restore this text: set tokenizer.tokenizer to none")
            words = words.model_copy(update={"tokenizer": "none"})
        if words.tokenizer == "none":
            base |= WORD_PIECES | {"merges": None}
        pieces = SubwordSettings.model_validate({**base, **one_size(base, subwords or {})})
    if words.tokenizer not in ("moses", "none") or pieces.target != "joint":
        raise InputError(
            "`fit` trains no parser: set tokenizer.tokenizer to moses or none, and subwords.target to joint"
        )
    if pieces.user_defined_symbols and words.tokenizer != "none":
        raise InputError("Moses' tokenizer would tear subwords.user_defined_symbols: set tokenizer.tokenizer to none")
    return words, pieces


def _check_text(pairs: Pairs) -> None:
    if len(pairs) != 2:
        raise InputError(f"`pairs` and `valid` are two lists, of sentences and of translations: one has {len(pairs):,}")
    if isinstance(pairs[0], str) or isinstance(pairs[1], str):
        raise InputError("`pairs` and `valid` are two lists of sentences: one has a string in place of a list")
    if len(pairs[0]) != len(pairs[1]):
        raise InputError(f"{len(pairs[0]):,} sentences have {len(pairs[1]):,} translations: give one for each")
    if wrong := [line for side in pairs for line in side if not isinstance(line, str)]:
        raise InputError(f"`pairs` and `valid` hold strings, but one sentence is {wrong[0]!r}: leave its pair out")
    if torn := next((line for side in pairs for line in side if re.search("[\ud800-\udfff]", line)), None):
        raise InputError(f"a sentence is no text of Unicode, {torn[:200]!r}, as of undecoded bytes: leave its pair out")


def _tokenised(pairs: Pairs, languages: tuple[str, str], settings: TokenizerSettings) -> list[list[str]]:
    sides = zip(codec.tokenizers(*languages, settings), pairs, strict=True)
    # Lines may end as files' lines do.
    return [
        ["" if is_blank(line) else tokenizer.tokenize(line.rstrip("\r\n")) for line in lines]
        for tokenizer, lines in sides
    ]


def _encoded(name: str, sides: Sequence[Sequence[str]], vocabulary: Subwords) -> pa.RecordBatch:
    """Return the ids of the pairs that are not left out; raise InputError, with the argument's name, without any."""
    encoded = ([[*vocabulary.encode(line), EOS] for line in side] for side in sides)
    kept = [pair for pair in zip(*encoded, strict=True) if min(map(len, pair)) > 1 and max(map(len, pair)) <= LONGEST]
    if not kept:
        raise InputError(
            f"no pair of `{name}` has text on both sides and at most {LONGEST} subwords on each, the end of the "
            "sentence included: give one that has"
        )
    columns = [pa.array(ids, pa.list_(pa.int32())) for ids in zip(*kept, strict=True)]
    return pa.record_batch(columns, names=["src", "tgt"])


def _job(model: dict[str, Any], training: dict[str, Any], rows: int, corpus: Path) -> Job:
    given = {"training": training, "vocabulary": rows, "corpus": str(corpus)}
    with explained("", ": change it"):
        sizes = Job.model_validate({"model": {"d_k": 1, "d_v": 1, **model}, **given}).model
        width = sizes.d_model // sizes.h
        job = Job.model_validate({"model": {"d_k": width, "d_v": width, **model}, **given})
    if job.model.positions == "learned" and job.model.max_positions < (needed := SEARCH.max_extra + 2):
        raise InputError(
            f"model.max_positions is {job.model.max_positions}, but a sentence's translation may have "
            f"{SEARCH.max_extra} subwords more: raise it to at least {needed}"
        )
    return job
