"""Train the Transformer on the binned corpus with torchrun (section 5). A killed training resumes when run again.

Its state is in a folder outside DVC's outputs, which DVC deletes before a run: pipeline/trainings.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from nmt.common.processes import TRAINERS, wait_for_sharers
from nmt.model_settings import ModelSettings
from nmt.training.settings import TrainingSettings
from pipeline.config.paths import state_store
from pipeline.config.sections import load_section
from pipeline.trainings import identity, start
from pipeline.trainings.folder import Launch, check_whole, launch_and_watch, locked, write_job
from pipeline.trainings.outputs import write_outputs


def run(
    launch: Launch,
    progress: Callable[[int], AbstractContextManager[Any]],
    follow: Callable[[Path], AbstractContextManager[object]],
) -> None:
    """Train, or resume training, and write the checkpoints.

    `progress` is called with the number of updates and returns what has `show`, a `Show`; `follow` with the
    training's folder, whose history it may read while training works.
    """
    model, training = load_section("model", ModelSettings), load_section("training", TrainingSettings)
    job = identity.job_of(model, training, Path())
    folder = identity.folder_of(job)
    with locked(folder):
        # The processes of a killed stage may still be saving their state.
        wait_for_sharers(folder / TRAINERS, f"train: waiting for the processes of an earlier attempt ({folder.name})")
        write_job(folder, job)
        if training.start_from is not None:
            start.copy_parent(folder, training.start_from)
        # With a store, a finished training may not have been uploaded yet.
        with ExitStack() as around:
            if state_store() is not None or not (folder / "done.json").exists():
                check_whole(folder)
                around.enter_context(follow(folder))  # until all is handed on: it tells how the stage ended
                with progress(training.updates) as display:
                    launch_and_watch(folder, launch, display.show)
            check_whole(folder)
            write_outputs(folder, Path())
