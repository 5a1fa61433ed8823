"""One update of a training, section 5: sum the gradients, divide by the update's target tokens, step Adam."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt.config import InputError, Job
from nmt.loss import BlockLoss, block_loss, padded_block_loss, smoothed_cross_entropy
from nmt.model import Transformer
from nmt.schedule import learning_rate
from nmt.training.batches import Batch, Corpus, Update, cut, make_batch, updates
from nmt.training.compilation import compilation_requested, compile_layers
from nmt.training.distributed import World, check_processes
from nmt.training.gradients import FlatGradients, Gradients
from nmt.training.measurements import Measurements
from nmt.training.packed.batches import PackedBatch, PackedPlan
from nmt.training.packed.forward import Layers, forward
from nmt.training.packed.recording import TOLERANCE, RecordedPass, Recorder, packing_requested
from nmt.training.state import ResumeConditions, TrainState

VALIDATION_POSITIONS = 2048
"""Positions a side of a validation batch: enough to fill a matrix product on a CPU."""
STOP_EVERY = 4
"""On GPUs this many updates take a second or so, and each question would hold up the start of the next one."""


class Trainer:
    """One rank's model, optimizer, gradients and measurements. `step` is the update.

    Its passes over shards are of one of two kinds: of padded batches, whose gradients come one by one, or of packed
    batches of few shapes, which a GPU repeats as CUDA graphs.
    """

    def __init__(self, job: Job, world: World, recorder: Recorder | None = None) -> None:
        """`recorder`: of passes of packed batches; by default they are not recorded."""
        self.job, self.world = job, world
        self.settings = job.training
        check_processes(world.size, self.settings.shards)
        if self.settings.deterministic and world.device.type == "cuda":
            use_deterministic_kernels()
        torch.manual_seed(self.settings.seed)
        self.model = Transformer(job.model, job.vocabulary, job.target_vocabulary).to(world.device)
        self.compiled, self.packed = compilation_requested(world.device), packing_requested(world.device)
        self.parameters = list(self.model.parameters())
        own = self.settings.shards // world.size
        self.gradients: Gradients | FlatGradients
        if self.packed:
            self.gradients = FlatGradients(self.parameters, world, own)
            # With deterministic kernels, which passes are repeated must change no bit.
            tolerance = 0.0 if self.settings.deterministic else TOLERANCE
            self._recorded_pass = RecordedPass(
                self.packed_losses, self.gradients, self.model, self._seed, recorder, tolerance
            )
        else:
            self.gradients = Gradients(self.parameters, world, own)
        if self.compiled:
            compile_layers(self.model)
        self.layers = Layers(compiled=self.compiled)
        self.block_loss, self.padded_block_loss = block_loss, padded_block_loss
        if self.compiled:
            self.block_loss = torch.compile(block_loss, dynamic=True)
            self.padded_block_loss = torch.compile(padded_block_loss, dynamic=True)
        self.optimizer = torch.optim.Adam(
            self.parameters, betas=(self.settings.beta1, self.settings.beta2), eps=self.settings.epsilon, fused=True
        )
        self.measured = Measurements(world, TrainState.initial(self.conditions(), world.size))
        self.stop_requested = False

    @property
    def update(self) -> int:
        """The last finished update."""
        return self.measured.update

    @property
    def recorded_shapes(self) -> int:
        """How many shapes of packed batches are repeated from a recording."""
        return self._recorded_pass.recorded if self.packed else 0

    def conditions(self) -> ResumeConditions:
        """Return what must be the same for a resumed training to be bit-identical."""
        return ResumeConditions.of(
            self.world, compiled=self.compiled, packed=self.packed, deterministic=self.settings.deterministic
        )

    def updates(self, corpus: Corpus, last: int) -> Iterator[Update[Any]]:
        """Yield this rank's share of the updates after the last finished one, as batches of this trainer's kind."""
        plan = self.settings.seed, self.settings.tokens, self.settings.shards
        share = self.world.rank, self.world.size, self.update + 1, last
        if not self.packed:
            return updates(corpus, *plan, *share)
        return PackedPlan(corpus, *plan).updates(*share)

    def step(self, update: Update[Any]) -> None:
        """Train on an update: sum gradients over shards and ranks, divide once by all target tokens, step Adam.

        The learning rate is Eq. 3.
        """
        self.model.train()
        self.gradients.start()
        losses = torch.zeros(len(update.shards), 2, dtype=torch.float64, device=self.world.device)
        for number, (shard, own_losses) in enumerate(zip(update.shards, losses, strict=True), start=update.first):
            # By the position in the training, so that resuming needs no random state.
            seed = random_seed(self.settings.seed, update.number, number)
            own_losses[:] = self._backward(shard, seed, update.sums.target)
        norm = torch.nn.utils.get_total_norm(self.gradients.finish())
        # Fused Adam leaves weights and moments unchanged if found_inf is 1, so the host need not wait for the device.
        # GradScaler sets the same attribute, which the class does not declare.
        self.optimizer.found_inf = (~torch.isfinite(norm)).float()  # type: ignore[attr-defined] # not declared
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(update.number, self.job.model.d_model, self.settings)
        self.optimizer.step()
        self.measured.add_update(update, losses, norm)

    def _backward(self, shard: Batch | PackedBatch | None, seed: int, tokens: int) -> Tensor:
        """Run forward and backward pass of a shard; return its losses, [2].

        Raises InputError if memory runs out.
        """
        try:
            if isinstance(shard, PackedBatch):
                return self._recorded_pass(shard.to(self.world.device), seed)
            return self._padded_pass(shard, seed, tokens)
        except RuntimeError as error:
            if shard is None or not out_of_memory(error):
                raise
            raise InputError(
                f"a shard of {shard.size_text()} does not fit into this device's memory: raise training.shards, which "
                f"is {self.settings.shards}, or use a larger device or fewer processes on it"
                + (", or set NMT_GRAPH=0" if isinstance(shard, PackedBatch) else "")
            ) from error

    def _padded_pass(self, shard: Batch | None, seed: int, tokens: int) -> Tensor:
        assert isinstance(self.gradients, Gradients)
        if shard is None:
            self.gradients.add_empty_shard()
            return torch.zeros(2)
        self._seed(seed)
        self.gradients.start_shard()
        smoothed, negative_log_likelihood = self.losses(shard.to(self.world.device), self.settings.eps_ls)
        (smoothed / tokens).backward()
        return torch.stack((smoothed.detach(), negative_log_likelihood))

    def _seed(self, seed: int) -> None:
        seed_dropout(self.world.device, seed)

    def losses(self, batch: Batch, eps_ls: float) -> tuple[Tensor, Tensor]:
        """Return smoothed loss and negative log-likelihood of a batch, summed over its target tokens."""
        with self._precision():
            states = self.model(batch.src, batch.tgt_in)
        states = states.flatten(0, 1).index_select(0, batch.positions)
        return self._losses(states, batch.labels, eps_ls, self.block_loss)

    def packed_losses(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Return what `losses` does of a packed batch, with the training's smoothing."""
        with self._precision():
            states = forward(self.model, batch, self.layers)
        return self._losses(states, batch.labels, self.settings.eps_ls, self.padded_block_loss)

    def _losses(self, states: Tensor, labels: Tensor, eps_ls: float, one_block: BlockLoss) -> tuple[Tensor, Tensor]:
        if self.settings.precision == "bfloat16":
            # Without this cast the largest product, with the vocabulary, would run in float32, which LayerNorm returns.
            states = states.bfloat16()
        return smoothed_cross_entropy(states, self.model.output_table, labels, eps_ls, one_block)

    def _precision(self) -> Any:
        if self.settings.precision == "bfloat16":
            return torch.autocast(self.world.device.type, dtype=torch.bfloat16)
        return nullcontext()

    @torch.no_grad()
    def validate(self, corpus: Corpus) -> float:
        """Return the unsmoothed negative log-likelihood per target subword, in nats; its exp is the perplexity.

        The corpus alone decides the batches. Ranks take them in turn.
        """
        self.model.eval()
        count = -(-corpus.tokens // (2 * VALIDATION_POSITIONS))
        parts = cut(corpus, np.arange(len(corpus)), count).parts
        likelihoods = torch.zeros(count, dtype=torch.float64, device=self.world.device)
        for number in range(self.world.rank, count, self.world.size):
            if len(parts[number]):
                batch = make_batch(corpus, parts[number]).to(self.world.device)
                likelihoods[number] = self.losses(batch, 0.0)[1]
        return float(self.world.sum(likelihoods).sum()) / int(corpus.tgt_lengths.sum(dtype=np.int64))

    def weights_checksum(self) -> int:
        """Return the CRC-32 of all weights, which must be the same on every rank."""
        checksum = 0
        for parameter in self.parameters:
            checksum = zlib.crc32(parameter.detach().cpu().numpy().data, checksum)
        return checksum

    def any_stop_requested(self) -> bool:
        """Return whether any rank was asked to stop. Several GPUs ask each other every STOP_EVERY updates only."""
        if self.world.size > 1 and self.world.device.type == "cuda" and self.update % STOP_EVERY:
            return False
        return self.world.any(self.stop_requested)


def out_of_memory(error: RuntimeError) -> bool:
    """Return whether torch ran out of memory. On a CPU only the message says so."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def use_deterministic_kernels() -> None:
    """Make torch use kernels on GPUs that add in a fixed order, and raise an error where it has none."""
    # cuBLAS reads this when its first handle is made.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Every element of a new tensor is written before it is read.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # documented


def seed_dropout(device: torch.device, seed: int) -> None:
    """Seed the random numbers of a device.

    `torch.manual_seed` does so for all kinds of devices, which takes 2 ms on a machine without a GPU: it formats the
    stack for each kind that is not there.
    """
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def random_seed(seed: int, update: int, shard: int) -> int:
    """Return the seed of a shard's random numbers: distinct for every shard, the same on any process."""
    mixed = 0
    for part in (seed, update, shard):
        mixed = ((mixed ^ part) * 0x9E3779B97F4A7C15 + 0x7F4A7C15) % 2**64
        mixed ^= mixed >> 29
    return mixed % 2**63
