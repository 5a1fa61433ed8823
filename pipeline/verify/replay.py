"""Train parts of a training again, from the states that it kept, and compare the result to the bit."""

import math
import random
import re
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import yaml

from nmt.common.files import link_or_copy, scratch_folder
from nmt.errors import InputError
from nmt.training import chain, history
from nmt.training.chain import Link
from nmt.training.checkpoint import states, update_of
from nmt.training.settings import StartSettings
from nmt.training.state import read_state
from pipeline.config.paths import state_root
from pipeline.trainings import launch
from pipeline.trainings.folder import launch_and_watch
from pipeline.trainings.outputs import write_outputs
from pipeline.trainings.start import copy_parent
from pipeline.verify.certificate import ChainOfRun, Finding

Interval = tuple[int, int]  # (start, end): the updates start + 1 to end. Both have a link, but for a start of 0.


class Training:
    """A recorded training: its chain from the certificate, and what its folder under the state root keeps."""

    def __init__(self, recorded: ChainOfRun) -> None:
        self.job, self.links, self.portable = recorded.job, recorded.links, recorded.portable
        self.by_update = {link.update: link for link in self.links}
        self.last = self.links[-1].update
        self.folder = state_root() / "train" / recorded.state
        saved = {update_of(path): path for path in states(self.folder)}
        self.kept = {at: path for at, path in saved.items() if at in self.by_update}

    def states(self) -> Finding:
        """Compare the saved states with the chain; take those that were changed out of `kept`."""
        saved = self.kept
        changed = {update: path for update, path in saved.items() if not self._is_recorded(update, path)}
        self.kept = {update: path for update, path in saved.items() if update not in changed}
        if changed:
            problems = [f"{path} is not the state after update {at:,} of the chain" for at, path in changed.items()]
            return Finding("states", "differs", "; ".join(problems))
        if not self.kept.keys() - {self.last} and self.job["training"].get("keep_states"):
            return Finding("states", "inconclusive", f"{self.folder} keeps no earlier one: random parts cannot begin")
        return Finding("states", "equal", f"{len(saved)} in {self.folder}")

    def _is_recorded(self, update: int, path: Path) -> bool:
        link = self.by_update[update]
        try:
            return read_state(path).update == update and chain.state_hashes(path) == (link.weights, link.moments)
        except InputError:  # A damaged or missing file.
            return False

    def starts(self) -> list[int]:
        """Return the updates after which the training can begin again, in order."""
        return sorted({0, *self.kept})

    def choose(self, share: float) -> list[Interval]:
        """Return random intervals that begin where a state is kept and cover `share` of the updates, up to a link."""
        spans = [(start, end) for start, end in pairwise([*self.starts(), self.last]) if start < end]
        left, chosen = math.ceil(share * self.last), []
        for start, last in random.SystemRandom().sample(spans, len(spans)):
            if left > 0:
                end = next(end for end in self.by_update if end == last or last > end >= start + left)
                chosen.append((start, end))
                left -= end - start
        return sorted(chosen)

    def named(self, text: str) -> Interval:
        """Return the interval that covers `A:B`, from a kept state to a link; raise InputError where none does."""
        match = re.fullmatch(r"(\d+):(\d+)", text)
        if match is None or not int(match[1]) < int(match[2]) <= self.last:
            raise InputError(f"--updates is {text!r}: it must be A:B with 0 <= A < B <= {self.last}, as 0:20")
        start = max(start for start in self.starts() if start <= int(match[1]))
        return start, next(update for update in self.by_update if update >= int(match[2]))

    def retrained(self, corpus: Path, named: Sequence[Interval], share: float, outputs: Path | None = None) -> Finding:
        """Train the named intervals again on a corpus, or random ones that cover a share of the updates.

        A training that is trained again as a whole, at once, writes the stage's outputs into the folder `outputs`.
        """
        whole = [(0, self.last)] if outputs is not None and share == 1 else []
        step, chosen = "intervals", named or whole or self.choose(share)
        for start, end in chosen:
            if (parted := self._parting(start, end, *self.retrain(start, end, corpus, outputs))) is not None:
                if self.by_update[end].conditions["deterministic"]:
                    return Finding(step, "differs", parted)
                why = "without training.deterministic GPUs add in no fixed order: it shows nothing"
                return Finding(step, "inconclusive", f"{parted}; {why}")
        updates = sum(end - start for start, end in chosen)
        where = ", ".join(f"{start:,} to {end:,}" for start, end in chosen)
        detail = f"{updates:,} of {self.last:,} updates trained again ({updates / self.last:.1%}: {where})"
        if not self.kept.keys() - {self.last} and updates < self.last:
            return Finding(step, "inconclusive", f"{detail}; no state is kept here to begin elsewhere")
        return Finding(step, "recomputed", detail)

    def retrain(
        self, start: int, end: int, corpus: Path, outputs: Path | None = None
    ) -> tuple[list[Link], list[history.Record]]:
        """Train the updates after `start` up to `end` again; return chain and history. `outputs`: see `retrained`."""
        # Beside the kept states, so that they become hard links there.
        with scratch_folder(state_root().resolve() / "replay") as scratch:
            (folder := scratch / self.folder.name).mkdir()
            if start:
                kept = self.kept[start]
                shutil.copytree(kept, folder / "resume" / kept.name, copy_function=link_or_copy)
                before = [link for link in self.links if link.update <= start]
                (folder / history.CHAIN).write_text("".join(link.model_dump_json() + "\n" for link in before))
            elif parent := self.job["training"].get("start_from"):
                copy_parent(folder, StartSettings.model_validate(parent))
            recorded = [link for link in self.links if start < link.update <= end]
            # A training that was extended is trained again in the same parts: losses were recorded at other updates.
            # So is one that was resumed with other threads, unless it is portable.
            for (updates, every, threads), links in groupby(recorded, self._part):
                settings = {"updates": updates, "validate_every": every, "keep_states": 0, "patience": None}
                job = {**self.job, "training": {**self.job["training"], **settings}, "corpus": str(corpus.resolve())}
                (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
                (folder / "last_update").write_text(str(list(links)[-1].update), encoding="utf-8")
                (folder / "done.json").unlink(missing_ok=True)
                launch_and_watch(folder, partial(launch.torchrun, threads=threads), lambda *_: None)
            if outputs is not None and (start, end) == (0, self.last):
                write_outputs(folder, outputs)
            return chain.read_chain(folder / history.CHAIN), history.read_history(folder / history.HISTORY)

    def _part(self, link: Link) -> tuple[int, int, int]:
        """Return `training.updates`, `validate_every` and the threads of a process with which a link is made again."""
        return link.updates, link.validate_every, 0 if self.portable else int(link.conditions["threads"])

    def _parting(self, start: int, end: int, again: Sequence[Link], records: Sequence[Mapping[str, Any]]) -> str | None:
        """Return the first link after `start` that differs, and why it may; None where all up to `end` are equal."""
        made, before = {link.update: link for link in again}, start
        for link in (link for link in self.links if start < link.update <= end):
            # Where training.verify_every was changed, training again has its links elsewhere, and the same losses.
            losses = chain.losses_hash(records, before, link.update)
            other = made.get(link.update, link).model_copy(update={"losses": losses})
            names = ("weights", "moments", "losses")
            if changed := [name for name in names if getattr(link, name) != getattr(other, name)]:
                now = again[-1].conditions
                both = ((key, was, now[key]) for key, was in link.conditions.items() if key in now)
                why = [f"{key} was {was}, here {here}" for key, was, here in both if was != here]
                return "; ".join([f"{', '.join(changed)} part between updates {before:,} and {link.update:,}", *why])
            before = link.update
        return None if end in made else f"training again did not come to update {end:,}"
