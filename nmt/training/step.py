"""One update of a training, section 5: sum the gradients, divide by the update's target tokens, step Adam."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nmt.config import Job
from nmt.loss import smoothed_cross_entropy
from nmt.model import Transformer
from nmt.schedule import learning_rate
from nmt.training.batches import Corpus, MicroBatch, Update, micro_batch, pack
from nmt.training.compilation import compile_layers
from nmt.training.distributed import World
from nmt.training.gradients import Gradients
from nmt.training.measurements import Measurements
from nmt.training.state import ResumeConditions, TrainState


class Trainer:
    """One rank's model, optimizer, gradients and measurements. `step` is the update."""

    def __init__(self, job: Job, world: World, micro_tokens: int) -> None:
        self.job, self.world = job, world
        self.micro_tokens = micro_tokens
        """Padded positions per side that go through the model together; halved when memory runs out."""
        self.settings = job.training
        torch.manual_seed(self.settings.seed)
        self.model = Transformer(job.model, job.vocabulary, job.target_vocabulary).to(world.device)
        self.compiled = compile_layers(self.model, world.device)
        self.parameters = list(self.model.parameters())
        self.gradients = Gradients(self.parameters, world)
        self.optimizer = torch.optim.Adam(
            self.parameters, betas=(self.settings.beta1, self.settings.beta2), eps=self.settings.epsilon, fused=True
        )
        self.measured = Measurements(world, TrainState.initial(self.conditions()))
        self.stop_requested = False

    @property
    def update(self) -> int:
        """The last finished update."""
        return self.measured.update

    def conditions(self) -> ResumeConditions:
        """Return what must be the same for a resumed training to be bit-identical."""
        return ResumeConditions.of(self.world, self.micro_tokens, self.compiled)

    def step(self, update: Update) -> None:
        """Train on an update: sum gradients over micro-batches and ranks, divide once by all target tokens, step Adam.

        The learning rate is Eq. 3.
        """
        self.model.train()
        tokens = update.sums.target
        self.gradients.start()
        for number, batch in enumerate(update.batches, start=1):
            # Seeded by the position in the training, so that resuming needs no random state.
            torch.manual_seed(random_seed(self.settings.seed, update.number, self.world.rank, number))
            self._accumulate(batch.to(self.world.device), tokens, self.parameters, number == len(update.batches))
        norm = torch.nn.utils.get_total_norm(self.gradients.finish())
        not_finite = (~torch.isfinite(norm)).float()
        # Fused Adam leaves weights and moments unchanged if found_inf is 1, so the host need not wait for the device.
        # GradScaler sets the same attribute, which the class does not declare.
        self.optimizer.found_inf = not_finite  # type: ignore[attr-defined]
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(update.number, self.job.model.d_model, self.settings)
        self.optimizer.step()
        self.measured.add_update(update, norm, not_finite)

    def _accumulate(self, batch: MicroBatch, tokens: int, parameters: Sequence[nn.Parameter], last: bool) -> None:
        """Add a micro-batch to the gradients of `parameters`, in halves if memory runs out."""
        self.gradients.expect(parameters, last)
        if self._try_accumulate(batch, tokens, parameters):
            return
        # The failed pass added some gradients in full. The halves add only to the others.
        pending = list(self.gradients.pending)
        first, second = batch.halves()
        self._lower_micro_tokens(max(first.src.numel(), first.tgt_in.numel()))
        self._accumulate(first, tokens, pending, last=False)
        self._accumulate(second, tokens, pending, last)

    def _try_accumulate(self, batch: MicroBatch, tokens: int, parameters: Sequence[nn.Parameter]) -> bool:
        """Run forward and backward pass and add the gradients.

        Return False if memory ran out; the failed pass's tensors are then freed.
        """
        try:
            smoothed, negative_log_likelihood = self.losses(batch, self.settings.eps_ls)
            (smoothed / tokens).backward(inputs=parameters)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            return False
        self.measured.add_losses(smoothed, negative_log_likelihood)
        return True

    def _lower_micro_tokens(self, tokens: int) -> None:
        if self.world.device.type == "cuda":
            torch.cuda.empty_cache()
        if tokens < self.micro_tokens:
            message = (
                f"rank {self.world.rank} ran out of memory at {self.micro_tokens:,} positions and continues with "
                f"{tokens:,} at a time; the weights will not be bit-identical to an undisturbed run's"
            )
            print(message, file=sys.stderr, flush=True)
            self.micro_tokens = tokens

    def try_batch(self, batch: MicroBatch) -> None:
        """Run a forward and a backward pass and discard the gradients; raise torch's error if memory runs out."""
        try:
            smoothed, _ = self.losses(batch, self.settings.eps_ls)
            smoothed.backward()
        finally:
            self.gradients.start()

    def moments_bytes(self) -> int:
        """Return the bytes of Adam's two moments, which the first update allocates."""
        return 2 * sum(p.numel() * p.element_size() for p in self.parameters)

    def losses(self, batch: MicroBatch, eps_ls: float) -> tuple[Tensor, Tensor]:
        """Return smoothed loss and negative log-likelihood of a micro-batch, summed over its target tokens."""
        with self._precision():
            states = self.model(batch.src, batch.tgt_in)
        states = states.flatten(0, 1).index_select(0, batch.positions)
        if self.settings.precision == "bfloat16":
            # Without this cast the largest product, with the vocabulary, would run in float32, which LayerNorm returns.
            states = states.bfloat16()
        return smoothed_cross_entropy(states, self.model.output_table, batch.labels, eps_ls)

    def _precision(self) -> Any:
        if self.settings.precision == "bfloat16":
            return torch.autocast(self.world.device.type, dtype=torch.bfloat16)
        return nullcontext()

    @torch.no_grad()
    def validate(self, corpus: Corpus) -> float:
        """Return the unsmoothed negative log-likelihood per target subword, in nats; its exp is the perplexity."""
        self.model.eval()
        indices = np.arange(self.world.rank, len(corpus), self.world.size)
        total = torch.zeros(2, dtype=torch.float64, device=self.world.device)
        for part in pack(corpus, indices, self.micro_tokens):
            _, negative_log_likelihood = self.losses(micro_batch(corpus, part).to(self.world.device), 0.0)
            total += torch.stack((negative_log_likelihood, total.new_tensor(int(corpus.tgt_lengths[part].sum()))))
        nll, tokens = self.world.sum(total).tolist()
        return float(nll / tokens)

    def weights_checksum(self) -> int:
        """Return the CRC-32 of all weights, which must be the same on every rank."""
        checksum = 0
        for parameter in self.parameters:
            checksum = zlib.crc32(parameter.detach().cpu().numpy().data, checksum)
        return checksum

    def any_stop_requested(self) -> bool:
        """Return whether any rank was asked to stop."""
        return self.world.any(self.stop_requested)


def out_of_memory(error: RuntimeError) -> bool:
    """Return whether torch ran out of memory. On a CPU only the message says so."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def random_seed(seed: int, update: int, rank: int, micro: int) -> int:
    """Return the seed of a micro-batch's random numbers: distinct for every micro-batch, the same after a resume."""
    mixed = 0
    for part in (seed, update, rank, micro):
        mixed = ((mixed ^ part) * 0x9E3779B97F4A7C15 + 0x7F4A7C15) % 2**64
        mixed ^= mixed >> 29
    return mixed % 2**63
