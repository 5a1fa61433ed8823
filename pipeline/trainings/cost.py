"""What a training needs: the size of its corpus, disk, memory, operations, and the speed of real updates here."""

import os
import time
from pathlib import Path
from typing import NamedTuple

from nmt.flops import LengthSums, parameters, training_flops
from nmt.model_settings import ModelSettings
from nmt.training.settings import TrainingSettings
from pipeline.config import machine
from pipeline.config.corpora import other_direction
from pipeline.config.paths import BINNED_STATS, read_json, state_root
from pipeline.config.settings import Configuration

KNOWN_PAIRS = {
    **{(corpus, "de-en"): 4_508_785 for corpus in ("wmt14", "wmt16-t2t")},
    **{(corpus, "en-fr"): 40_836_715 for corpus in ("wmt14", "wmt16-t2t")},
    **{("multi30k", pair): 29_000 for pair in ("de-en", "en-fr", "cs-en")},
    ("iwslt14", "de-en"): 174_443,
}
"""Training pairs, by the direction that is first in the alphabet. News Commentary 11 of wmt16-t2t is larger than 9 by
less than the estimates' error."""

# Approximate values for what is not measured on this machine.
LINE = 150  # bytes of a line of raw text
COMPRESSION = 3  # bytes of plain text per byte of its archive
MEAN_SUBWORDS = 28  # of a sentence, EOS included
SYMBOLS = 128  # of a closed vocabulary of trees
SPREAD = 1.5  # mean of squared lengths over the square of the mean length
RESERVE = 700 * 2**20  # bytes of a process before it trains: torch and its libraries
BFLOAT16 = 700 * 2**20  # bytes that oneDNN's products in bfloat16 add on a CPU


class CorpusSize(NamedTuple):
    pairs: int
    subwords: float  # mean length of a target sentence
    vocabulary: int
    origin: str  # of these numbers, for the printed plan
    target_vocabulary: int | None = None  # where the target has its own


def corpus_size(configuration: Configuration, prepared: bool) -> CorpusSize:
    """Return the training corpus's size: counted where it is `prepared`, else known, or guessed from bytes."""
    subwords, run = configuration.subwords, configuration.run
    if prepared and BINNED_STATS.exists():
        stats = read_json(BINNED_STATS)
        mean = stats["target_tokens"] / stats["pairs"]
        symbols = stats.get("target_vocabulary")
        return CorpusSize(stats["pairs"], mean, stats["vocabulary"], f"counted in {BINNED_STATS}", symbols)
    # Characters and unmerged pieces add to the merges: 32,000 give about 37,000.
    learned = subwords.vocabulary or int(1.15 * (subwords.merges or 0))
    vocabulary = -(-learned // subwords.multiple_of) * subwords.multiple_of
    symbols = SYMBOLS if subwords.target == "closed" else None
    if pairs := KNOWN_PAIRS.get((run.corpus, min(run.pair, other_direction(run.pair)))):
        return CorpusSize(pairs, MEAN_SUBWORDS, vocabulary, "known", symbols)
    local = [(Path(text.source.path), text.weight) for text in configuration.data.train if text.source.path is not None]
    bytes_ = sum(weight * path.stat().st_size for path, weight in local if path.exists())
    used = {text.source.archive for text in configuration.data.train}
    packed = sum(archive.bytes or 0 for archive in configuration.data.archives if archive.name in used)
    # An archive contains both sides.
    pairs = max(1, (bytes_ + packed * COMPRESSION // 2) // LINE)
    return CorpusSize(pairs, MEAN_SUBWORDS, vocabulary, "guessed from the bytes of its archives and files", symbols)


def parts(training: TrainingSettings) -> int:
    """Return how many parts an update is cut into: its shards, or one a GPU where sums have no fixed order."""
    gpus, requested = len(machine.gpus()), os.environ.get("WMT_PROCESSES", "")
    if training.deterministic or not gpus:
        return training.shards
    from nmt.training.distributed import most_processes  # imports torch

    return most_processes(int(requested) if requested.isdecimal() and int(requested) else gpus, training.shards)


def process_memory(
    model: ModelSettings, training: TrainingSettings, rows: tuple[int, int | None], subwords: float = MEAN_SUBWORDS
) -> int:
    """Return the bytes of memory of a process that trains; `rows`: of both embeddings; `subwords`: of a sentence."""
    weights = 4 * parameters(model, *rows)
    layer = 26 * model.d_model + 4 * model.d_ff + int(6 * model.h * subwords)
    in_turn = training.shards if training.deterministic or not machine.gpus() else 1
    activations = training.passes * training.tokens // parts(training) * (model.N * layer + 4 * model.d_model) * 4
    # Weights, their means, two moments, and gradients: a process that has all shards keeps as many sums as the tree has
    # levels.
    gradients = max(1, in_turn.bit_length() - 1)
    products = BFLOAT16 if training.precision == "bfloat16" and not machine.gpus() else 0
    return RESERVE + products + (3 + bool(training.ema_decay) + gradients) * weights + activations


def root_apart() -> Path | None:
    """Return the state root, or what exists of its path, if that is on another disk than the repository."""
    root = state_root().absolute()
    root = next(path for path in (root, *root.parents) if path.exists())
    return None if root.stat().st_dev == Path().stat().st_dev else root


def needs(configuration: Configuration, corpus: CorpusSize) -> tuple[dict[str, tuple[int, int]], int, int]:
    """Return bytes of disk by stage (state root, repository), of memory of each process, and training's operations."""
    model, training = configuration.model, configuration.training
    weights = 4 * parameters(model, corpus.vocabulary, corpus.target_vocabulary)
    text, averaged = 2 * LINE * corpus.pairs, bool(training.ema_decay)
    id_bytes = 2 if corpus.vocabulary <= 65_535 else 4
    disk = {
        "download": (sum(archive.bytes or 0 for archive in configuration.data.archives), text),
        "tokenize": (0, int(1.1 * text)),
        "binarize": (0, int(corpus.pairs * (2 * corpus.subwords * id_bytes + 16))),
        # The checkpoints, and weights, their means and both moments of the kept states, the last and the one being
        # written. To another disk checkpoints and the last weights are copied, not linked.
        "train": (
            weights * (training.keep_checkpoints + (3 + averaged) * (training.keep_states + 2)),
            weights * (training.keep_checkpoints + 1) if root_apart() else 0,
        ),
        "average": (0, 2 * weights),
    }
    tokens = training.updates * training.tokens
    squared = int(tokens * corpus.subwords * SPREAD)
    lengths = LengthSums(int(tokens / corpus.subwords), tokens, tokens, squared, squared, squared)
    memory = process_memory(model, training, (corpus.vocabulary, corpus.target_vocabulary), corpus.subwords)
    operations = training.passes * training_flops(model, corpus.target_vocabulary or corpus.vocabulary, lengths)
    return disk, memory, operations


def measured_rate(configuration: Configuration, corpus: CorpusSize, seconds: float = 3.0) -> float:
    """Return the operations per second of real updates of this model on one device, the best of a few."""
    import torch

    from nmt.packing import pack_tensor
    from nmt.portable import arithmetic
    from nmt.training.batches import Batch, Update
    from nmt.training.distributed import World
    from nmt.training.settings import Job
    from nmt.training.trainer import Trainer

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(machine.available_cores())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # One part as large as the row's on a GPU, a smaller one on a CPU, where an update takes long.
    training = configuration.training.model_copy(update={"shards": 1})
    model = configuration.model
    vocabulary = corpus.vocabulary
    symbols = corpus.target_vocabulary
    job = Job(model=model, training=training, vocabulary=vocabulary, target_vocabulary=symbols, corpus="none")
    trainer = Trainer(job, World(0, 1, device))
    length = max(2, round(corpus.subwords))
    positions = training.tokens // parts(configuration.training)
    rows = max(1, (positions if device.type == "cuda" else min(positions, 512)) // length)
    ids = torch.randint(4, min(vocabulary, job.output_rows), (rows, length))
    batch = Batch(pack_tensor(ids, model.h), pack_tensor(ids, model.h), ids.flatten())
    squared = rows * length**2
    sums = LengthSums(rows, rows * length, rows * length, squared, squared, squared)
    update = Update(number=1, first=0, shards=[batch], sums=sums, padded=2 * rows * length)
    times: list[float] = []
    with arithmetic(training.arithmetic):
        trainer.step(update)  # warms up
        while sum(times) < seconds:
            start = time.perf_counter()
            trainer.step(update)
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    return training.passes * training_flops(model, job.output_rows, sums) / min(times)
