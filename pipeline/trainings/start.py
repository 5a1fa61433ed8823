"""What a training starts from, where that is neither nothing nor its own state: a fork's state, a parent's weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from nmt.common.files import link_or_copy, write_text, writing
from nmt.common.tensors import WEIGHTS
from nmt.errors import InputError
from nmt.training import chain, checkpoint, history
from nmt.training.settings import ForkSettings, StartSettings, TrainingSettings
from nmt.training.state import START
from pipeline.config.paths import state_store
from pipeline.data import parent_folder


def prepare(state: Path, training: TrainingSettings) -> None:
    """Put what a training starts from into its folder `state`. Raises InputError where it is not to be had."""
    if training.fork is not None:
        begin_fork(state, training.fork)
    if training.start_from is not None:
        copy_parent(state, training.start_from)


def begin_fork(state: Path, fork: ForkSettings) -> None:
    """Put the state that a fork starts from into `state`, with what was recorded up to it, unless it has begun.

    Raises InputError if no training under the state root keeps that state and no store may have the fork's own.
    """
    if checkpoint.latest_resume(state / "resume") is not None:
        return
    for origin in sorted(state.parent.glob("*/")):
        links = {link["update"]: str(link.get("link")) for link in history.read_history(origin / history.CHAIN)}
        kept = chain.kept_states(origin).get(fork.update)
        if kept is not None and links.get(fork.update, "").startswith(fork.link):
            break
    else:
        if state_store() is not None:
            return  # A fork that another machine began resumes from its own state in the store.
        raise InputError(
            f"training.fork: no training in {state.parent} keeps the state after update {fork.update:,} whose `link` "
            f"in its results/chain.json begins with {fork.link[:12]}: fork where that training was run with "
            "training.keep_states"
        )
    for name in (history.HISTORY, history.CHAIN):
        earlier = [record for record in history.read_history(origin / name) if record["update"] <= fork.update]
        write_text(state / name, "".join(json.dumps(record) + "\n" for record in earlier))
    # Copy the run's checkpoints up to the fork: the average may use them.
    for path in checkpoint.checkpoints(origin / "checkpoints"):
        if checkpoint.update_of(path) <= fork.update:
            with writing(state / "checkpoints" / path.name) as temporary:
                link_or_copy(path, temporary)
    for folder in ("states", "resume"):  # The last one makes the fork complete.
        chain.copy_state(kept, state / folder / kept.name)


def copy_parent(state: Path, start: StartSettings) -> None:
    """Copy the weights that a training starts from into its folder `state`, unless they are there.

    Raises InputError where the parent is missing or has other weights.
    """
    if not (state / START).exists():
        # No link: the parent's folder is the user's, who may change the file in place.
        with writing(state / START) as temporary:
            shutil.copyfile(parent_folder.find(start) / WEIGHTS, temporary)
