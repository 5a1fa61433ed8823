"""Copy a training's newest state to a store while it trains; bring it to a machine that has none.

With `WMT_STATE=s3://bucket/prefix`, or another URL of an object store that fsspec knows, `train/<fingerprint>/` below
it has the newest state, the checkpoints and the logs, by the names that they have in the training's folder. A marker is
written last: `newest.json`, with the update of the state and the names of the files. Nothing prevents two machines from
training the same: each would delete the other's states.
"""

import contextlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
from fsspec.implementations.dirfs import DirFileSystem

from nmt.common.files import link_or_copy, read_yaml, scratch_folder
from nmt.errors import InputError, tell
from nmt.training import checkpoint
from nmt.training.history import CHAIN, HISTORY
from nmt.training.loop import newest_whole
from pipeline.config.paths import state_store
from pipeline.trainings import launch

MARKER = "newest.json"
OWN = re.compile(rf"(checkpoints|resume/update-\d+)/\w[\w.-]*|{HISTORY}|{CHAIN}")
"""The names that a state's files may have. Otherwise, whoever can write to the store could write any file here."""
POLL = 1.0  # seconds between two looks for a new state
RETRY = 10.0  # seconds between two attempts while the store fails
LAST_UPLOAD = 600.0  # seconds that the last upload may take


def launch_with_store(folder: Path, watch: Callable[[], None]) -> int:
    """Run `launch.torchrun` on the job in `folder`; with a store, resume from its state and upload new ones.

    Raises OSError if the store cannot be used at the start. A store that fails later stops nothing.
    """
    url = state_store()
    if url is None:
        return launch.torchrun(folder, watch)
    if "@" in url or "?" in url:
        raise InputError("WMT_STATE must be a URL without credentials, as s3://bucket/prefix")
    try:
        store = StateStore(url, folder.name)
        updates = read_yaml(folder / "job.yaml")["training"]["updates"]
        if store.newest()[0] > updates:
            # A shorter training neither takes a longer one's state nor deletes it.
            store = StateStore(url, f"{folder.name}-{updates}")
        if restored := store.pull(folder):
            print(f"train: restored update {restored:,} from {url}", flush=True)
    except InputError:
        raise
    except Exception as error:
        reason = f"{url} cannot be used ({_cause(error)}): check the address, the credentials and this machine's clock"
        raise OSError(reason) from None  # boto's error may hold a signed request.
    with _uploading(store, folder):
        # A finished training may still have to be uploaded.
        return 0 if (folder / "done.json").exists() else launch.torchrun(folder, watch)


class StateStore:
    """The state of one training in a store. Methods raise what the store's file system raises."""

    def __init__(self, url: str, name: str) -> None:
        files, root = fsspec.url_to_fs(f"{url.rstrip('/')}/train/{name}")
        self.files = DirFileSystem(root, files)

    def newest(self) -> tuple[int, list[str]]:
        """Return the update of the state, 0 if there is none, and the names of all files that belong to it."""
        if MARKER not in self.files.find(""):
            return 0, []
        marker = json.loads(self.files.cat_file(MARKER))
        if strange := [name for name in marker["files"] if not OWN.fullmatch(name)]:
            raise InputError(f"{MARKER} in the store names {strange[0]!r}, which is no file of a training's state")
        return marker["update"], marker["files"]

    def push(self, folder: Path) -> int:
        """Upload the newest state, then delete the one before; return its update, 0 for none or one just replaced."""
        stored, earlier = self.newest()
        state, _ = newest_whole(folder)
        if state is None or (update := checkpoint.update_of(state)) == stored:
            return stored
        kept = checkpoint.checkpoints(folder / "checkpoints")
        weights = [path for path in kept if checkpoint.update_of(path) <= update]
        logs = [name for name in (HISTORY, CHAIN) if (folder / name).exists()]
        with scratch_folder(folder / "sync") as scratch:
            try:
                for path in (*weights, *state.iterdir()):
                    target = scratch / path.relative_to(folder)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    link_or_copy(path, target)  # Training deletes files while they are uploaded, but changes none.
            except FileNotFoundError:
                return 0
            if checkpoint.latest_resume(folder) != state:
                return 0  # Some of its files may have been deleted already.
            files = [path.relative_to(scratch).as_posix() for path in scratch.rglob("*") if path.is_file()]
            stored_chain = self.files.cat_file(CHAIN) if CHAIN in earlier else b""
            if stored_chain and not (CHAIN in logs and (folder / CHAIN).read_bytes().startswith(stored_chain)):
                # Another machine's checkpoints may have these names. A kill must not leave ours beside its state.
                others = [name for name in earlier if not name.startswith("checkpoints/")]
                self.files.pipe_file(MARKER, json.dumps({"update": stored, "files": others}).encode())
                earlier = []
            for name in set(files).difference(earlier):
                self.files.put_file(str(scratch / name), name)
            for name in logs:  # They may have records of later updates, which resuming removes.
                self.files.pipe_file(name, (folder / name).read_bytes())
        files += logs
        self.files.pipe_file(MARKER, json.dumps({"update": update, "files": files}).encode())
        for name in {*self.files.find("")} - {MARKER, *files}:
            self.files.rm_file(name)
        return update

    def pull(self, folder: Path) -> int:
        """Bring `folder` to the store's state if that is newer than its own; return its update, else 0."""
        update, names = self.newest()
        whole, _ = newest_whole(folder)
        if update <= (checkpoint.update_of(whole) if whole else 0):
            return 0
        with scratch_folder(folder / "sync") as scratch:
            self.files.get(names, [str(scratch / name) for name in names])
            # What is here may be of other weights than those of the machine that trained on.
            for name in ("resume", "checkpoints"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(folder / name, scratch / f"replaced-{name}")
            # The state comes last: a kill before leaves none.
            for path in (*scratch.glob("checkpoints/*"), *scratch.glob("*.jsonl"), *scratch.glob("resume/*")):
                target = folder / path.relative_to(scratch)
                target.parent.mkdir(exist_ok=True)
                os.replace(path, target)
        return update


@contextlib.contextmanager
def _uploading(store: StateStore, folder: Path) -> Iterator[None]:
    """Upload new states in the background; at the end, wait for the last one."""
    ended, uploaded, failing = threading.Event(), -1, False

    def upload() -> None:
        nonlocal uploaded, failing
        last = False
        while not last:
            last = ended.wait(RETRY if failing else POLL)
            if uploaded != checkpoint.last_saved_update(folder):
                try:
                    uploaded, failing = store.push(folder), False
                except Exception as error:
                    if not failing:
                        tell(
                            f"train: the store fails ({_cause(error)}); training goes on, and uploading is tried again"
                        )
                    failing = True

    thread = threading.Thread(target=upload, name="upload of states", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LAST_UPLOAD)
        if uploaded != checkpoint.last_saved_update(folder):
            tell(
                "train: the last state is on this machine only: `dvc repro --force --single-item train` here uploads it"
            )


def _cause(error: Exception) -> str:
    """Return the kind of an error, with the text if the system or fsspec wrote it: boto's may hold credentials."""
    return f"{type(error).__name__}: {error}" if isinstance(error, OSError | ImportError) else type(error).__name__
