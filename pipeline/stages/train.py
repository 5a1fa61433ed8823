"""Train the Transformer on the binned corpus with torchrun (section 5). A killed training resumes when run again.

Its state is in a folder outside DVC's outputs, which DVC deletes before a run: pipeline/trainings.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from nmt.common.processes import TRAINERS, wait_for_sharers
from nmt.model_settings import ModelSettings
from nmt.training.settings import TrainingSettings
from pipeline.config.paths import state_store
from pipeline.config.sections import load_section
from pipeline.trainings import folder, identity, start
from pipeline.trainings.folder import Launch
from pipeline.trainings.outputs import write_outputs


def run(
    launch: Launch,
    progress: Callable[[int], AbstractContextManager[Any]],
    follow: Callable[[Path], AbstractContextManager[object]],
) -> None:
    """Train, or resume training, and write the checkpoints.

    `progress` is called with the number of updates and returns what has `show`, a `Show`; `follow` with the folder of
    the state, whose history it may read while training works.
    """
    model, training = load_section("model", ModelSettings), load_section("training", TrainingSettings)
    job = identity.job_of(model, training, Path())
    state = identity.folder_of(job)
    with folder.locked(state):
        # The processes of a killed stage may still be saving their state.
        wait_for_sharers(state / TRAINERS, f"train: waiting for the processes of an earlier attempt ({state.name})")
        folder.write_job(state, job)
        if training.start_from is not None:
            start.copy_parent(state, training.start_from)
        # With a store, a finished training may not have been uploaded yet.
        with ExitStack() as around:
            if state_store() is not None or not (state / "done.json").exists():
                folder.check_whole(state)
                around.enter_context(follow(state))  # until all is handed on: it tells how the stage ended
                with progress(training.updates) as display:
                    folder.launch_and_watch(state, launch, display.show)
            folder.check_whole(state)
            write_outputs(state, Path())
