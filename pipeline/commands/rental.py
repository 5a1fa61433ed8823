"""Compute, not measure, how long a training would take on rented GPUs and what it would cost: `wmt plan --on H100`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nmt import flops
from nmt.config import InputError


@dataclass(frozen=True)
class Rental:
    """Rented GPUs. `price`: of all of them for an hour. `utilisation`: the share of their peak that is reached.

    Raises InputError where a number is out of range.
    """

    device: str
    devices: int = 1
    price: float | None = None
    utilisation: float = 0.3

    def __post_init__(self) -> None:
        if self.devices < 1 or not 0 < self.utilisation <= 1 or not 0 <= (self.price or 0) < math.inf:
            raise InputError(
                "--devices must be from 1 on, --utilisation above 0 and at most 1, --price a number from 0 on"
            )

    def estimate(self, operations: int, precision: str) -> str:
        """Return a sentence about a training of so many operations. Raises InputError for what cannot be computed."""
        hardware = flops.hardware(self.device)
        peak = hardware and hardware.peak(precision)
        if not hardware or not peak:
            known = ", ".join(entry.name for entry in flops.HARDWARE if entry.peak(precision))
            raise InputError(f"--on {self.device}: its peak in {precision} is not known; known are {known}")
        hours = operations / (self.devices * self.utilisation * peak) / 3600
        money = "" if self.price is None else f", {hours * self.price:,.2f} at {self.price:,.2f} an hour"
        return (
            f"{hours:,.1f} hours on {self.devices} {hardware.name}{money}; computed for {self.utilisation:.0%} of "
            f"{peak / 1e12:,.0f} TFLOPS each, not measured"
        )
