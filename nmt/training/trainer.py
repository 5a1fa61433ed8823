"""Training as section 5 tells it: the update on one screen, the loop on another, resumable at any point.

`python -m nmt.training.trainer JOB` is what torchrun runs on each device. JOB is a folder with `job.yaml` (a Job);
there the training keeps its state: `resume/` (the last whole state), `checkpoints/` (for averaging), `history.jsonl`
(what it measured, a line an interval) and, at the end, `done.json`, `interrupted` when it was asked to stop, or
`failed.json` when something is wrong.
"""

from __future__ import annotations

import json
import signal
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from nmt.common.files import writing
from nmt.common.processes import die_with_parent
from nmt.config import InputError, ModelSettings, Settings, TrainingSettings
from nmt.flops import LengthSums
from nmt.loss import smoothed_cross_entropy
from nmt.model import Transformer
from nmt.schedule import learning_rate
from nmt.training import checkpoint, micro_batch_size
from nmt.training.batches import Corpus, MicroBatch, Update, ahead, micro_batch, pack, train_files, updates
from nmt.training.compilation import compile_layers
from nmt.training.distributed import World, lost_the_others, world
from nmt.training.gradients import Gradients
from nmt.training.history import Log
from nmt.training.micro_batch_size import out_of_memory

INTERRUPTED = 75
"""The exit status after SIGTERM: the state is saved and training can go on."""


class Job(Settings):
    """What to train, on what."""

    model: ModelSettings
    training: TrainingSettings
    vocabulary: int
    corpus: str
    """The folder of the binned corpus."""


class Trainer:
    """One rank's model, optimizer and measurements. `step` is the update; `train` the loop around it."""

    def __init__(self, job: Job, place: World, micro_tokens: int) -> None:
        self.job, self.world = job, place
        self.micro_tokens = micro_tokens
        """Padded positions a side that go through the model together; halved where the memory does not hold them."""
        self.settings = job.training
        torch.manual_seed(self.settings.seed)
        self.model = Transformer(job.model, job.vocabulary).to(place.device)
        self.compiled = compile_layers(self.model, place.device)
        self.parameters = list(self.model.parameters())
        self.gradients = Gradients(self.parameters, place)
        self.optimizer = torch.optim.Adam(
            self.parameters, betas=(self.settings.beta1, self.settings.beta2), eps=self.settings.epsilon, fused=True
        )
        self.update = 0
        self.sums = LengthSums.zero()
        """Of all pairs trained on."""
        self.interval = torch.zeros(4, dtype=torch.float64, device=place.device)
        """Since the last report: smoothed loss, log-likelihood, gradient norm, padded positions."""
        self.interval_updates = self.interval_tokens = 0
        self.not_finite: list[tuple[int, Tensor]] = []
        """Since the last report: every update, and 1 where its gradient was not finite."""
        self.stop_asked = False

    def step(self, update: Update) -> None:
        """The update: gradients summed over micro-batches and ranks, divided once by all target tokens; Adam, Eq. 3."""
        self.model.train()
        tokens = update.sums.target
        self.gradients.start()
        for number, batch in enumerate(update.batches, start=1):
            # Drawn anew from where training stands, so that resuming needs no random state.
            torch.manual_seed(stream(self.settings.seed, update.number, self.world.rank, number))
            self._accumulate(batch.to(self.world.device), tokens, self.parameters, number == len(update.batches))
        norm = torch.nn.utils.get_total_norm(self.gradients.finish())
        not_finite = (~torch.isfinite(norm)).float()
        # Fused Adam leaves weights and moments alone where found_inf is 1; no need to ask the device before.
        # GradScaler hands it over by the same attribute, which the class does not declare.
        self.optimizer.found_inf = not_finite  # type: ignore[attr-defined]
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(update.number, self.job.model.d_model, self.settings)
        self.optimizer.step()
        if self.world.main:
            # All ranks have the same.
            self.interval[2] += norm.nan_to_num(0.0, 0.0, 0.0)
        self.interval[3] += update.padded
        self.not_finite.append((update.number, not_finite))
        self.interval_updates += 1
        self.interval_tokens += tokens
        self.update = update.number
        self.sums += update.sums

    def _accumulate(self, batch: MicroBatch, tokens: int, wanted: Sequence[nn.Parameter], last: bool) -> None:
        """Add a micro-batch to the gradients of `wanted`; in halves where the memory does not hold it whole."""
        self.gradients.expect(wanted, last)
        if self._fits(batch, tokens, wanted):
            return
        # What the failed pass had reached is complete: only the rest is computed again.
        left = list(self.gradients.left)
        first, second = batch.halves()
        self._lower_micro_tokens(max(first.src.numel(), first.tgt_in.numel()))
        self._accumulate(first, tokens, left, last=False)
        self._accumulate(second, tokens, left, last)

    def _fits(self, batch: MicroBatch, tokens: int, wanted: Sequence[nn.Parameter]) -> bool:
        """Whether the memory holds both passes. By the end of this call what filled it is let go of."""
        try:
            smoothed, negative_log_likelihood = self.losses(batch, self.settings.eps_ls)
            (smoothed / tokens).backward(inputs=wanted)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            return False
        self.interval[0] += smoothed.detach()
        self.interval[1] += negative_log_likelihood
        return True

    def _lower_micro_tokens(self, tokens: int) -> None:
        if self.world.device.type == "cuda":
            torch.cuda.empty_cache()
        if tokens < self.micro_tokens:
            print(
                f"rank {self.world.rank} is out of memory at {self.micro_tokens:,} positions: {tokens:,} at a time "
                "from here on; the weights will not be bit-identical to an undisturbed run's",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            self.micro_tokens = tokens

    def losses(self, batch: MicroBatch, eps_ls: float) -> tuple[Tensor, Tensor]:
        """Smoothed loss and negative log-likelihood of a micro-batch, summed over its target tokens."""
        with self._precision():
            states = self.model(batch.src, batch.tgt_in)
        states = states.flatten(0, 1).index_select(0, batch.positions)
        if self.settings.precision == "bfloat16":
            # The last LayerNorm gives float32; the product with the vocabulary is the model's largest.
            states = states.bfloat16()
        return smoothed_cross_entropy(states, self.model.embedding.table, batch.labels, eps_ls)

    def _precision(self) -> Any:
        if self.settings.precision == "bfloat16":
            return torch.autocast(self.world.device.type, dtype=torch.bfloat16)
        return nullcontext()

    @torch.no_grad()
    def validate(self, corpus: Corpus) -> float:
        """Negative log-likelihood a target subword, without smoothing, in nats; its exp is the perplexity."""
        self.model.eval()
        indices = np.arange(self.world.rank, len(corpus), self.world.size)
        total = torch.zeros(2, dtype=torch.float64, device=self.world.device)
        for part in pack(corpus, indices, self.micro_tokens):
            _, negative_log_likelihood = self.losses(micro_batch(corpus, part).to(self.world.device), 0.0)
            total += torch.stack((negative_log_likelihood, total.new_tensor(int(corpus.tgt_lengths[part].sum()))))
        likelihood, tokens = self.world.sum(total).tolist()
        return float(likelihood / tokens)

    def weights_checksum(self) -> int:
        """The CRC-32 of all weights, which are the same on every rank."""
        checksum = 0
        for parameter in self.parameters:
            checksum = zlib.crc32(parameter.detach().cpu().numpy().data, checksum)
        return checksum

    def stop_agreed(self) -> bool:
        """Whether any rank was asked to stop."""
        return self.world.any(self.stop_asked)

    def report(self) -> dict[str, int | float]:
        """Means over the updates since the last report, over all ranks."""
        smoothed, likelihood, norm, padded = self.world.sum(self.interval.clone()).tolist()
        updates, tokens = max(1, self.interval_updates), max(1, self.interval_tokens)
        self.interval.zero_()
        self.interval_updates = self.interval_tokens = 0
        return {
            "loss": smoothed / tokens, "nll": likelihood / tokens, "gradient_norm": norm / updates,
            "padded": padded, "tokens": float(tokens),
        }  # fmt: skip

    def skipped(self) -> list[int]:
        """The updates since the last call whose gradient was not finite; they changed no weight."""
        flags = torch.stack([flag for _, flag in self.not_finite]).tolist() if self.not_finite else []
        numbers = [number for (number, _), flag in zip(self.not_finite, flags, strict=True) if flag]
        self.not_finite.clear()
        return numbers


def stream(seed: int, update: int, rank: int, micro: int) -> int:
    """The seed of one micro-batch's random numbers: distinct for every place in training, equal after a resume."""
    mixed = 0
    for part in (seed, update, rank, micro):
        mixed = ((mixed ^ part) * 0x9E3779B97F4A7C15 + 0x7F4A7C15) % 2**64
        mixed ^= mixed >> 29
    return mixed % 2**63


def train(job: Job, folder: Path, place: World, micro_tokens: int | None = None) -> bool:
    """Train until the last update, going on from `folder`'s state; False when asked to stop before.

    `micro_tokens`: padded positions a side that go through the model together; None: what the device has room for.
    """
    settings = job.training
    corpus = Corpus(train_files(Path(job.corpus)))
    valid = Corpus([Path(job.corpus) / "valid.arrow"])
    check_positions(job.model, corpus, valid)
    trainer = Trainer(job, place, micro_tokens or 0)
    if micro_tokens is None:
        longest = int(max(corpus.src_lengths.max(), corpus.tgt_lengths.max()))
        trainer.micro_tokens = micro_batch_size.micro_tokens(trainer, folder, longest)
    log = Log(folder, trainer, corpus)
    log.resume()
    with asked_to_stop(trainer):
        start = trainer.update + 1
        end = trainer.update if log.patience_ended() else settings.updates
        feed = updates(
            corpus, settings.seed, settings.tokens, lambda: trainer.micro_tokens, place.rank, place.size, start,
            end,
        )  # fmt: skip
        for update in ahead(feed):
            trainer.step(update)
            if update.number % settings.checkpoint_every == 0 and place.main:
                checkpoint.save_checkpoint(
                    folder / "checkpoints", update.number, trainer.model, settings.keep_checkpoints
                )
            last = update.number == settings.updates
            if update.number % settings.validate_every == 0 or last:
                log.validation(trainer.validate(valid))
            log.interval(last)
            if log.patience_ended():
                break
            if not last and trainer.stop_agreed():
                log.stop()
                return False
        log.finish()
    return True


def check_positions(model: ModelSettings, corpus: Corpus, valid: Corpus) -> None:
    """Raise InputError where a sentence is longer than the positions that a model learns."""
    if model.positions != "learned":
        return
    for name, pairs in (("training", corpus), ("validation", valid)):
        lengths = np.maximum(pairs.src_lengths, pairs.tgt_lengths)
        longest = int(lengths.argmax())
        if lengths[longest] > model.max_positions:
            raise InputError(
                f"line {pairs.line(longest):,} of the {name} set has {lengths[longest]:,} subwords, but "
                f"model.max_positions is {model.max_positions:,}: raise that, or shorten the line"
            )


@contextmanager
def asked_to_stop(trainer: Trainer) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a stop after the current update."""

    def ask(signum: int, frame: FrameType | None) -> None:
        trainer.stop_asked = True

    old = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def main() -> None:
    """A worker of torchrun: trains the job in the folder given.

    Exit statuses do not survive torchrun, which turns them all into 1: what happened stands in the folder, as
    `done.json`, `interrupted`, or `failed.json` where this worker itself was at fault. A worker that only lost the
    others writes none.
    """
    if len(sys.argv) != 2:
        sys.exit("usage: python -m nmt.training.trainer JOB")
    # A SIGKILL of torchrun would leave its workers alive, and holding the devices.
    die_with_parent()
    folder = Path(sys.argv[1])
    torch.set_flush_denormal(True)
    job = Job.model_validate(yaml.safe_load((folder / "job.yaml").read_text(encoding="utf-8")))
    try:
        with world() as place:
            finished = train(job, folder, place)
            if not finished and place.main:
                (folder / "interrupted").touch()
    except InputError as error:
        _failed(folder, "refused", str(error))
        sys.exit(f"train: {error}")
    except Exception as error:
        if not lost_the_others(error):
            _failed(folder, "failed", f"{type(error).__name__}: {error}")
        raise
    if not finished:
        sys.exit(INTERRUPTED)


def _failed(folder: Path, state: str, error: str) -> None:
    """Leave word of a failure; the first of several stays."""
    path = folder / "failed.json"
    if not path.exists():
        with writing(path) as temporary:
            temporary.write_text(json.dumps({"state": state, "error": error}), encoding="utf-8")


if __name__ == "__main__":
    main()
