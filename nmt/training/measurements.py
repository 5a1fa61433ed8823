"""What a training has measured since its first update: sums, validations, gradients that were not finite, time."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from nmt import flops
from nmt.config import InputError
from nmt.training.batches import Update
from nmt.training.distributed import World, device_name
from nmt.training.state import Interval, Setting, TrainState

DIVERGED = 100
"""Stop the training after this many consecutive updates whose gradient was not finite."""


class Measurements:
    """The running values of a training on one rank, restored from a TrainState and saved as one."""

    def __init__(self, world: World, state: TrainState) -> None:
        self.world = world
        self.update, self.sums, self.padded = state.update, state.sums, state.padded
        self.best, self.valid, self.worse = state.best, state.valid, state.worse
        self.last_finite, self.resumes = state.last_finite, state.resumes
        interval = state.interval
        # State holds sums over all ranks, so one rank alone continues them.
        totals = [interval.loss, interval.likelihood, interval.norm, interval.padded] if world.main else [0.0] * 4
        self.totals = torch.tensor(totals, dtype=torch.float64, device=world.device)
        """This rank's part of the interval: smoothed loss, negative log-likelihood, gradient norm, padded positions."""
        self.interval_updates, self.interval_sums = interval.updates, interval.sums
        self.interval_skipped = interval.skipped
        self._not_finite: list[tuple[int, Tensor]] = []
        """Every update since the last check, and 1 if its gradient was not finite."""
        self._checked = state.update
        self._seconds_before, self._device_seconds_before = state.seconds, dict(state.device_seconds)
        self._started = time.monotonic()
        self._reported = self._started - interval.seconds

    def add_losses(self, smoothed: Tensor, negative_log_likelihood: Tensor) -> None:
        """Add a micro-batch's losses, each summed over its target tokens."""
        self.totals[0] += smoothed.detach()
        self.totals[1] += negative_log_likelihood

    def add_update(self, update: Update, norm: Tensor, not_finite: Tensor) -> None:
        """Add a finished update, its gradient norm, and 1 if that was not finite; the device computes on meanwhile."""
        if self.world.main:
            # All ranks have the same.
            self.totals[2] += norm.nan_to_num(0.0, 0.0, 0.0)
        self.totals[3] += update.padded
        self._not_finite.append((update.number, not_finite))
        self.interval_updates += 1
        self.interval_sums += update.sums
        self.update = update.number
        self.sums += update.sums

    def add_validation(self, loss: float) -> None:
        """Add a validation loss."""
        self.valid = loss
        self.worse = 0 if loss < self.best else self.worse + 1
        self.best = min(self.best, loss)

    def check_gradients(self) -> list[int]:
        """Return the updates since the last call whose gradient was not finite; they changed no weight.

        Raises InputError after DIVERGED consecutive such updates.
        """
        flags = torch.stack([flag for _, flag in self._not_finite]).tolist() if self._not_finite else []
        skipped = [number for (number, _), flag in zip(self._not_finite, flags, strict=True) if flag]
        self._not_finite.clear()
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

    def sum_interval_over_ranks(self) -> None:
        """Put the sums over all ranks in place of this rank's part, as saved states hold them; every rank calls it."""
        self.world.sum(self.totals)

    def take_interval(self) -> Interval:
        """Return the sums over all ranks since the last call, and start a new interval; every rank calls it."""
        self.sum_interval_over_ranks()
        now = time.monotonic()
        interval = self._interval(now)
        self.padded += interval.padded
        self.totals.zero_()
        self.interval_updates = self.interval_skipped = 0
        self.interval_sums = flops.LengthSums.zero()
        self._reported = now
        return interval

    def _interval(self, now: float) -> Interval:
        loss, likelihood, norm, padded = self.totals.tolist()
        sums = {"loss": loss, "likelihood": likelihood, "norm": norm, "padded": padded, "sums": self.interval_sums}
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
        """Return the share of padding in all positions up to the last report."""
        return 1 - (self.sums.source + self.sums.target) / max(1.0, self.padded)

    def state(self, setting: Setting) -> TrainState:
        """Return what a training with this setting resumes from."""
        names = ("update", "sums", "padded", "best", "valid", "worse", "last_finite", "resumes")
        times = {"seconds": self.seconds(), "device_seconds": self.device_seconds()}
        own = {name: getattr(self, name) for name in names}
        interval = self._interval(time.monotonic())
        return TrainState.model_validate({**own, **times, "interval": interval, "setting": setting})
