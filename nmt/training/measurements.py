"""What a training has measured since its first update: sums, validations, gradients that were not finite, time."""

from __future__ import annotations

import math
import sys
import time

import torch
from torch import Tensor

from nmt import hardware
from nmt.errors import InputError
from nmt.portable import arithmetic
from nmt.training.batches import Update
from nmt.training.distributed import World
from nmt.training.state import Interval, TrainState

DIVERGED = 100  # stop the training after this many consecutive updates whose gradient was not finite


class Measurements:
    """Keeps a TrainState up to date on one rank."""

    def __init__(self, world: World, state: TrainState) -> None:
        self.world, self.state = world, state
        self._uncollected: list[tuple[int, Tensor, Tensor]] = []
        """Every update since the last `collect`: its number, the losses of this rank's shards, its gradient norm."""
        self._clock = time.monotonic()  # when the times in `state` were added up last

    def add_update(self, update: Update, losses: Tensor, norm: Tensor) -> None:
        """Add a finished update; does not wait for the device.

        `losses`, [shards of this rank, 2]: smoothed loss and negative log-likelihood of each shard, summed over its
        target tokens. `norm`: of the gradient summed over all shards.
        """
        self._uncollected.append((update.number, losses, norm))
        state = self.state
        state.update = update.number
        state.sums += update.sums
        state.padded += update.padded
        state.interval.updates += 1
        state.interval.sums += update.sums

    def collect(self) -> None:
        """Sum the losses of the updates since the last call over all shards; every rank must call this.

        Every rank then has the same sums, the same to the bit for any number of ranks. Raises InputError after DIVERGED
        consecutive updates whose gradient was not finite.
        """
        if not self._uncollected:
            return
        numbers, losses, norms = zip(*self._uncollected, strict=True)
        self._uncollected.clear()
        of_rank = torch.stack(losses)
        every = of_rank.new_zeros(len(of_rank), self.world.size, *of_rank.shape[1:])
        every[:, self.world.rank] = of_rank
        with arithmetic("portable" if self.state.conditions.portable else "ordinary"):
            of_updates = self.world.sum(every).cpu().flatten(1, 2).sum(1).tolist()
        interval = self.state.interval
        # One update after the other, so that a stop between two reports changes no sum.
        for number, (loss, nll), norm in zip(numbers, of_updates, torch.stack(norms).tolist(), strict=True):
            interval.loss += loss
            interval.nll += nll
            if math.isfinite(norm):
                interval.norm += norm
                self.state.last_finite = number
            else:
                interval.skipped += 1
                if self.world.main:
                    message = f"update {number:,}: the gradient was not finite and changed no weight"
                    print(message, file=sys.stderr, flush=True)
        consecutive = self.state.update - self.state.last_finite
        if consecutive >= DIVERGED:
            raise InputError(
                f"the gradients of the {consecutive:,} updates up to {self.state.update:,} were not finite: the "
                "training has diverged; lower training.learning_rate_scale, or raise training.warmup_steps"
            )

    def add_validation(self, loss: float) -> None:
        """Update the best validation loss and the number of validations since; NaN is never better."""
        better = loss < self.state.best_loss
        self.state.best_loss = loss if better else self.state.best_loss
        self.state.validations_since_best = 0 if better else self.state.validations_since_best + 1

    def take_interval(self) -> Interval:
        """Return the sums since the last call, and start a new interval; every rank must call this."""
        self.collect()
        interval = self.saved().interval
        self.state.interval = Interval()
        return interval

    def seconds(self) -> float:
        """Return the training time so far, over all attempts."""
        return self.saved().seconds

    def saved(self) -> TrainState:
        """Return the state, with the time until now; its sums are complete if every rank called `collect` before."""
        now, state = time.monotonic(), self.state
        seconds, device = now - self._clock, state.conditions.device
        self._clock = now
        state.seconds += seconds
        state.interval.seconds += seconds
        spent = state.device_seconds.get(device, 0.0)
        state.device_seconds[device] = spent + seconds * hardware.devices(device, state.processes)
        return state
