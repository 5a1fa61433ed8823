"""What a new training with `training.start_from` starts from: its parent's weights."""

from __future__ import annotations

import shutil
from pathlib import Path

from nmt.common.files import writing
from nmt.common.tensors import WEIGHTS
from nmt.training.settings import StartSettings
from nmt.training.state import START
from pipeline.data import parent_folder


def copy_parent(state: Path, start: StartSettings) -> None:
    """Copy the weights that a training starts from into its folder `state`, unless they are there.

    Raises InputError where the parent is missing or has other weights.
    """
    if not (state / START).exists():
        # No link: the parent's folder is the user's, who may change the file in place.
        with writing(state / START) as temporary:
            shutil.copyfile(parent_folder.find(start) / WEIGHTS, temporary)
