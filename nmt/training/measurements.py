"""What a training has measured since its first update: sums, validations, gradients that were not finite, time."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor

from nmt import flops
from nmt.config import InputError
from nmt.training.batches import Update
from nmt.training.distributed import World, device_name
from nmt.training.state import Interval, ResumeConditions, TrainState

DIVERGED = 100
"""Stop the training after this many consecutive updates whose gradient was not finite."""


class Measurements:
    """The running values of a training on one rank, restored from a TrainState and saved as one."""

    def __init__(self, world: World, state: TrainState) -> None:
        self.world = world
        self.update, self.sums, self.padded = state.update, state.sums, state.padded
        self.best_loss, self.valid_loss = state.best_loss, state.valid_loss
        self.validations_since_best = state.validations_since_best
        self.last_finite, self.resumes = state.last_finite, state.resumes
        self._start_interval(state.interval)
        self._uncollected: list[tuple[int, Tensor, Tensor]] = []
        """Every update since the last `collect`: its number, the losses of this rank's shards, its gradient norm."""
        self._checked = state.update
        self._skipped: list[int] = []
        """Updates since the last check whose gradient was not finite."""
        self._seconds_before, self._device_seconds_before = state.seconds, dict(state.device_seconds)
        self._started = time.monotonic()
        self._reported = self._started - state.interval.seconds

    def _start_interval(self, interval: Interval) -> None:
        self.loss, self.nll, self.norm = interval.loss, interval.nll, interval.norm
        self.interval_updates, self.interval_sums = interval.updates, interval.sums
        self.interval_skipped = interval.skipped

    def add_update(self, update: Update[Any], losses: Tensor, norm: Tensor) -> None:
        """Add a finished update; does not wait for the device.

        `losses`, [shards of this rank, 2]: smoothed loss and negative log-likelihood of each shard, summed over its
        target tokens. `norm`: of the gradient summed over all shards.
        """
        self._uncollected.append((update.number, losses, norm))
        self.interval_updates += 1
        self.interval_sums += update.sums
        self.update = update.number
        self.sums += update.sums
        self.padded += update.padded

    def add_validation(self, loss: float, *, counts: bool) -> None:
        """Add a validation loss.

        `counts`: whether patience counts it. False for the extra validation at the last update.
        """
        self.valid_loss = loss
        if not counts:
            return
        self.validations_since_best = 0 if loss < self.best_loss else self.validations_since_best + 1
        self.best_loss = min(self.best_loss, loss)

    def collect(self) -> None:
        """Sum the losses of the updates since the last call over all shards; every rank must call this.

        Every rank then has the same sums, the same to the bit for any number of ranks.
        """
        if not self._uncollected:
            return
        numbers, losses, norms = zip(*self._uncollected, strict=True)
        self._uncollected.clear()
        own = torch.stack(losses)
        every = own.new_zeros(len(own), self.world.size, *own.shape[1:])
        every[:, self.world.rank] = own
        of_updates = self.world.sum(every).cpu().flatten(1, 2).sum(1).tolist()
        # One update after the other, so that a stop between two reports changes no sum.
        for number, (loss, nll), norm in zip(numbers, of_updates, torch.stack(norms).tolist(), strict=True):
            self.loss += loss
            self.nll += nll
            if math.isfinite(norm):
                self.norm += norm
            else:
                self._skipped.append(number)

    def check_gradients(self) -> list[int]:
        """Return the updates since the last call whose gradient was not finite; they changed no weight.

        Every rank must call this. Raises InputError after DIVERGED consecutive such updates.
        """
        self.collect()
        skipped, self._skipped = self._skipped, []
        finite = set(range(self._checked + 1, self.update + 1)) - set(skipped)
        self.last_finite = max(finite, default=self.last_finite)
        self._checked = self.update
        self.interval_skipped += len(skipped)
        if self.update - self.last_finite >= DIVERGED:
            raise InputError(
                f"the gradients of the {self.update - self.last_finite:,} updates up to {self.update:,} were not "
                "finite: the training has diverged; lower training.learning_rate_scale, or raise training.warmup_steps"
            )
        return skipped

    def take_interval(self) -> Interval:
        """Return the sums since the last call, and start a new interval; every rank must call this."""
        self.collect()
        now = time.monotonic()
        interval = self._interval(now)
        self._start_interval(Interval.empty())
        self._reported = now
        return interval

    def _interval(self, now: float) -> Interval:
        sums = {"loss": self.loss, "nll": self.nll, "norm": self.norm, "sums": self.interval_sums}
        counts = {"updates": self.interval_updates, "skipped": self.interval_skipped}
        return Interval.model_validate({**sums, **counts, "seconds": now - self._reported})

    def seconds(self) -> float:
        """Return the training time so far, over all attempts."""
        return self._seconds_before + time.monotonic() - self._started

    def device_seconds(self) -> dict[str, float]:
        """Return the training time so far multiplied by devices, by device model."""
        name = device_name(self.world.device)
        own = (time.monotonic() - self._started) * flops.devices(name, self.world.size)
        return {**self._device_seconds_before, name: self._device_seconds_before.get(name, 0.0) + own}

    def padding(self) -> float:
        """Return the share of padding in all positions."""
        return 1 - (self.sums.source + self.sums.target) / max(1, self.padded)

    def state(self, conditions: ResumeConditions) -> TrainState:
        """Return what a training under these conditions resumes from; call `collect` on every rank before."""
        names = ["update", "sums", "padded", "best_loss", "valid_loss", "validations_since_best"]
        names += ["last_finite", "resumes"]
        times = {"seconds": self.seconds(), "device_seconds": self.device_seconds()}
        own = {name: getattr(self, name) for name in names}
        interval = self._interval(time.monotonic())
        rest = {"interval": interval, "processes": self.world.size, "conditions": conditions}
        return TrainState.model_validate({**own, **times, **rest})
