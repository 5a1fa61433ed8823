"""Train parts of a training again, from the states that it kept, and compare the result to the bit."""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import yaml

from nmt.common.files import scratch_folder
from nmt.config import InputError
from nmt.training import chain, history, state
from nmt.training.chain import Link
from pipeline.common.paths import BINNED
from pipeline.common.stage import read_json, state_root
from pipeline.training import launch

HASHES = ("weights", "moments", "losses")
"""What two trainings of the same updates are compared by, in the order of messages."""


@dataclass(frozen=True)
class Interval:
    """The updates after `start` up to `end`, both of which have a link (or `start` is 0)."""

    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.start:,} to {self.end:,}"


@dataclass(frozen=True)
class Replay:
    """An interval that was trained again."""

    interval: Interval
    seconds: float
    """Training time, without the start of the processes."""
    parted: str | None
    """What differs from the record, and between which updates; None where all is equal."""
    conditions: tuple[str, ...]
    """Recorded conditions that are others here."""
    exact: bool
    """Whether the recorded conditions give the same bits each time: not on GPUs without training.deterministic."""


class Training:
    """A recorded training: its job and chain from the certificate, and what its folder under the state root keeps."""

    def __init__(self, content: Mapping[str, Any], where: Path) -> None:
        self.job: dict[str, Any] = content["job"]
        self.code: str = content["code"]
        self.links = chain.parse(content["links"], where)
        self.folder = state_root() / "train" / content["state"]
        self.kept = {
            update: path
            for update, path in chain.kept_states(self.folder).items()
            if any(link.update == update for link in self.links)
        }
        fork = self.job["training"].get("fork")
        self.begin: int = fork["update"] if fork else 0
        """The update before the first that is this training's own."""

    def link(self, update: int) -> Link:
        """Return the link after an update that has one."""
        return next(link for link in self.links if link.update == update)

    def changed_states(self) -> list[str]:
        """Return what differs between the kept states and the chain; take such states out of `kept`."""
        found = []
        for update, path in list(self.kept.items()):
            link = self.link(update)
            recorded = {"weights": link.weights, "moments": link.moments}
            here = dict(zip(recorded, chain.state_hashes(path), strict=True))
            if changed := [name for name in recorded if here[name] != recorded[name]]:
                found.append(f"the {' and '.join(changed)} of the kept state after update {update:,} were changed")
                del self.kept[update]
        return found

    def starts(self) -> list[int]:
        """Return the updates after which the training can begin again, in order."""
        return sorted({*self.kept, *([0] if self.begin == 0 else [])})

    def choose(self, share: float, chance: random.Random) -> list[Interval]:
        """Return random intervals that begin where a state is kept and cover `share` of the updates, up to a link."""
        if not 0 < share <= 1:
            raise InputError(f"--share is {share:g}: it must be above 0 and at most 1")
        starts, last = self.starts(), self.links[-1].update
        spans = [Interval(*bounds) for bounds in pairwise([*starts, last]) if bounds[0] < bounds[1]]
        left, chosen = math.ceil(share * (last - self.begin)), []
        for span in chance.sample(spans, len(spans)):
            ends = [link.update for link in self.links if span.start < link.update <= span.end]
            end = next((end for end in ends if end - span.start >= left), span.end)
            chosen.append(Interval(span.start, end))
            left -= end - span.start
            if left <= 0:
                break
        return sorted(chosen, key=lambda interval: interval.start)

    def named(self, text: str) -> Interval:
        """Return the interval that covers `A:B`, from a kept state to a link; raise InputError where none does."""
        match = re.fullmatch(r"(\d+):(\d+)", text)
        last = self.links[-1].update
        if match is None or not self.begin <= int(match[1]) < int(match[2]) <= last:
            raise InputError(f"--updates is {text!r}: it must be A:B with {self.begin} <= A < B <= {last}, as 0:20")
        first, end = int(match[1]), int(match[2])
        starts = self.starts()
        start = max((start for start in starts if start <= first), default=None)
        planned = self.job["training"].get("keep_states", 0)
        if start is None or (start == 0 and first > 0 and planned and not self.kept):
            left = "no other part can"
            if starts:
                link = next(link.update for link in self.links if link.update > starts[0])
                left = f"name updates from {starts[0]} on, as --updates {starts[0]}:{link}"
            raise InputError(
                f"{self.folder} keeps no state before update {first:,} any more, so this part cannot be trained again: "
                f"{left}"
            )
        return Interval(start, next(link.update for link in self.links if link.update >= end))

    def retrain(self, interval: Interval) -> Replay:
        """Train an interval again; raise ChildProcessError or InputError where the training fails."""
        recorded = [link for link in self.links if interval.start < link.update <= interval.end]
        conditions = recorded[0].conditions
        # Beside the kept states, so that they become hard links there.
        with scratch_folder(state_root() / "verify") as folder, environment(conditions):
            self._prepare(folder, interval.start)
            # A training that was extended is trained again in the same parts: losses were recorded at other updates.
            for part, links in groupby(recorded, lambda link: (link.updates, link.validate_every)):
                self._train(folder, interval, *part, list(links)[-1].update)
            again = [link for link in chain.read_chain(folder / history.CHAIN) if link.update > interval.start]
            parted = self._compare(recorded, again, history.read_history(folder / "history.jsonl"), interval.start)
            before = state.read_state(self.kept[interval.start]).seconds if interval.start else 0.0
            seconds = float(read_json(folder / "done.json")["train_seconds"]) - before
        others = [
            f"{key} was {value}, here {again[0].conditions.get(key)}"
            for key, value in conditions.items()
            if again[0].conditions.get(key) != value
        ]
        promised = [link.conditions for link in recorded]
        exact = all(each.get("deterministic", True) or each.get("device") == "cpu" for each in promised)
        return Replay(interval, seconds, parted, tuple(others), exact)

    def _prepare(self, folder: Path, start: int) -> None:
        """Put the state after the update `start` and the chain up to it into an empty folder."""
        if start:
            chain.copy_state(self.kept[start], folder / "resume" / self.kept[start].name)
            before = [link for link in self.links if link.update <= start]
            (folder / history.CHAIN).write_text("".join(link.model_dump_json() + "\n" for link in before))

    def _train(self, folder: Path, interval: Interval, updates: int, validate_every: int | None, end: int) -> None:
        """Train on in a folder up to the update `end` with the settings that a link recorded."""
        training = {**self.job["training"], "updates": updates, "keep_states": 0}
        if validate_every is not None:
            training["validate_every"] = validate_every
        job = {**self.job, "training": training, "corpus": str(BINNED.resolve())}
        (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
        (folder / "last_update").write_text(str(end), encoding="utf-8")
        (folder / "done.json").unlink(missing_ok=True)
        launch.train(folder, lambda: None)
        if not (folder / "done.json").exists():
            failed = folder / "failed.json"
            reason = f": {read_json(failed)['error']}" if failed.exists() else "; its output is above"
            raise ChildProcessError(f"training updates {interval} again failed{reason}")

    def _compare(
        self, recorded: Sequence[Link], again: Sequence[Link], records: Sequence[Mapping[str, Any]], start: int
    ) -> str | None:
        """Return what differs first, between which updates; None where everything is equal."""
        # Where training.verify_every was changed, training again has its links at other updates, and the same losses.
        here = {link.update: link for link in again}
        before = start
        for link in recorded:
            losses = chain.losses_hash(records, before, link.update)
            other = here.get(link.update, link).model_copy(update={"losses": losses})
            if changed := [name for name in HASHES if getattr(link, name) != getattr(other, name)]:
                loss = self._first_other_loss(records)
                return f"{', '.join(changed)} part between updates {before:,} and {link.update:,}{loss}"
            before = link.update
        if recorded[-1].update not in here:
            return f"training again did not come to update {recorded[-1].update:,}"
        return None

    def _first_other_loss(self, records: Sequence[Mapping[str, Any]]) -> str:
        """Return, as the end of a sentence, the first recorded loss that differs, where the history is here."""
        known = {
            (record["update"], key): record[key]
            for record in history.read_history(self.folder / "history.jsonl")
            for key in (*chain.VALIDATION, *chain.INTERVAL)
            if key in record
        }
        for record in records:
            for key in (*chain.VALIDATION, *chain.INTERVAL):
                place = (record["update"], key)
                if key in record and place in known and known[place] != record[key]:
                    return f"; {key} at update {place[0]:,} was recorded as {known[place]!r} and is {record[key]!r}"
        return ""


@contextmanager
def environment(conditions: Mapping[str, Any]) -> Iterator[None]:
    """Set the threads of a process, which the launcher takes from the environment, to the recorded number."""
    before = dict(os.environ)
    if conditions.get("threads"):
        os.environ["OMP_NUM_THREADS"] = str(conditions["threads"])
    try:
        yield
    finally:
        os.environ.pop("OMP_NUM_THREADS", None)
        os.environ.update(before)
