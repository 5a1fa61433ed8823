"""Training on GPUs in one table: python -m tests.bench.gpu [--price 2.5]

Base and big on one GPU compiled, eager and deterministic, which takes 8 shards in turn, and on all GPUs; then the first
update's loss and gradients beside a CPU's, a rank that fails, two deterministic trainings compared, and the ten kernels
that take most time. All ends within ten minutes: a case that there is no time for says so. `--tiny` rehearses it
on a CPU, where nothing is compiled. `--count` prints the operations and bytes of an update on torch's device without
data, where nothing is computed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nmt import flops, hardware
from nmt.common.processes import die_with_parent, end, start
from nmt.common.tensors import digest
from nmt.model import Transformer
from nmt.training.batches import Corpus, ahead, train_files
from nmt.training.distributed import World, join_world, most_processes
from nmt.training.loop import fail
from nmt.training.settings import Job
from nmt.training.trainer import Trainer
from tests.bench import training
from tests.bench.conditions import announce

CASE_SECONDS = 90
ALL_SECONDS = 560
TABLE_SECONDS = 400  # of ALL_SECONDS, those after which no row of the table starts
GRACE = 15.0  # seconds that torchrun has to end its processes


def settings(case: dict[str, Any], corpus: str) -> Job:
    """The row's own training, whole: only its first updates are trained."""
    chosen = training.row_settings(case["row"], "en-de")
    chosen["training"] |= {"precision": case.get("precision", "bfloat16"), "seed": 1}
    chosen["training"] |= {"deterministic": case.get("deterministic", False)}
    chosen["model"] |= case.get("model", {})
    if case["tiny"]:
        chosen["model"] |= {"N": 2, "d_model": 32, "d_ff": 64, "h": 2, "d_k": 16, "d_v": 16}
        chosen["training"] |= {"tokens": 500}
    return Job.model_validate({**chosen, "vocabulary": training.WMT14_VOCABULARY, "corpus": corpus})


def work(case: dict[str, Any], corpus: str) -> None:
    """One process of a case: print what rank 0 measured as a line of JSON."""
    job, updates = settings(case, corpus), case["updates"]
    with join_world(job.training.shards) as world:
        trainer = Trainer(job, world)
        feed = ahead(trainer.updates(Corpus(train_files(Path(corpus))), updates + 3))
        wait = torch.cuda.synchronize if world.device.type == "cuda" else lambda: None
        for update in islice(feed, 3):
            trainer.step(update)
        if case.get("fail") and world.rank == world.size - 1:
            raise RuntimeError("this rank fails on purpose")
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        wait()
        with profile(activities=activities) if case.get("profile") else nullcontext() as profiled:
            started, counted = time.perf_counter(), 0.0
            for update in feed:  # A thread makes the batches meanwhile, as in a training.
                trainer.step(update)
                counted += flops.training_flops(job.model, job.output_rows, update.sums)
            wait()
            seconds = time.perf_counter() - started
        sheet = hardware.data_sheet(trainer.conditions().device)
        peak = (sheet and sheet.bfloat16) or hardware.measure(world.device.type, 1.0, torch.bfloat16)
        values = {"rate": updates / seconds, "share": counted / seconds / world.size / peak}
        values |= {"hours": job.training.updates * seconds / updates / 3600, "compiled": trainer.compiled}
        values["weights"] = digest(trainer.model.state_dict())
        if profiled is not None:
            key = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
            events = sorted(profiled.key_averages(), key=lambda event: -getattr(event, key))
            values["kernels"] = [(event.key[:80], getattr(event, key) / 1000 / updates) for event in events[:10]]
        if world.main:
            print(json.dumps(values), flush=True)


def measured(case: dict[str, Any], corpus: str, until: float, *, eager: bool = False) -> dict[str, Any]:
    """What a case prints on its processes, started by torchrun; `error` says why it printed nothing.

    `until`: the time of time.monotonic() at which it must have ended.
    """
    seconds = min(CASE_SECONDS, until - time.monotonic() - GRACE)
    if seconds < 1:
        return {"error": "not started: no time is left"}
    folder = Path(tempfile.mkdtemp(dir=Path(corpus).parent))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(case["processes"])]
    command += ["-m", "tests.bench.gpu", "--work", json.dumps(case), corpus, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **({"TORCHDYNAMO_DISABLE": "1"} if eager else {})}
    environment |= {"CUDA_VISIBLE_DEVICES": ""} if case["tiny"] else {}
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as errors:
        process = start(command, env=environment, stdout=out, stderr=errors)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return {"error": f"stopped after {seconds:.0f} s"}
        finally:
            end(process, GRACE)
    if (failed := folder / "failed.json").exists():
        return {"error": json.loads(failed.read_text())["error"], "ended_after": time.time() - failed.stat().st_mtime}
    lines = [line for line in (folder / "stdout").read_text().splitlines() if line.startswith("{")]
    if status != 0 or not lines:
        last = (folder / "stderr").read_text().splitlines()[-1:]
        return {"error": f"failed with status {status}: {''.join(last)}"}
    return json.loads(lines[-1])


class Traffic(TorchDispatchMode):
    """Counts operations that compute, and the bytes of their operands and results."""

    operations, bytes = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.operations += 1
            tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor)]
            self.bytes += sum(x.numel() * x.element_size() for x in tensors)
        return result


def count(corpus: str) -> None:
    """Print operations and bytes of an update of base up to the optimizer, in float32, not compiled."""
    torch.cuda.get_device_name = lambda device=None: "a GPU"
    torch.autocast = lambda *_, **__: nullcontext()  # type: ignore[assignment, misc] # that device has none
    Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign] # nor memory to copy from
    for deterministic in (False, True):
        case = {"row": "base", "deterministic": deterministic, "tiny": False}
        trainer = Trainer(settings(case, corpus), World(0, 1, torch.device("meta")))
        trainer.optimizer.step = lambda: None  # type: ignore[method-assign, assignment] # it is not counted
        trainer.measured.add_update = lambda *_: None  # type: ignore[method-assign] # nor does that device have numbers
        (update,) = trainer.updates(Corpus(train_files(Path(corpus))), 1)
        with Traffic() as traffic:
            trainer.step(update)
        print(f"{trainer.shards:2} shards: {traffic.operations:6,} operations, {traffic.bytes / 1e9:6.1f} GB")


def table(common: dict[str, Any], corpus: str, devices: int, price: float, until: float) -> None:
    """Print the speed of trainings: updates a second, share of the GPU's peak, hours and price of the whole."""
    print("row    GPUs  mode           updates/s  of peak    hours    price")
    cases = [(1, "compiled"), (1, "eager"), (1, "deterministic"), (devices, "compiled")]
    if common["tiny"]:
        cases = cases[1:]
    for row in ("base", "big"):
        for processes, mode in dict.fromkeys(cases):
            case = {**common, "row": row, "processes": processes, "deterministic": mode == "deterministic"}
            values = measured(case, corpus, until, eager=mode == "eager" or common["tiny"])
            kind = "eager" if mode == "compiled" and not values.get("compiled", True) else mode
            name = f"{row:5}  {processes:4}  {kind:13}"
            if "error" in values:
                print(f"{name}  {values['error']}", flush=True)
                continue
            cost = values["hours"] * processes * price
            print(
                f"{name}  {values['rate']:9.2f}  {values['share']:7.1%}  {values['hours']:7.1f}  {cost:7.0f}",
                flush=True,
            )


def beside_cpu(corpus: str, precision: str) -> tuple[float, float]:
    """The relative differences of loss and gradients, without dropout, between a GPU and this CPU in float32."""
    small = {"N": 2, "d_model": 128, "d_ff": 256, "h": 4, "d_k": 32, "d_v": 32, "P_drop": 0.0}
    results: list[tuple[float, Tensor]] = []
    for device, chosen in (("cpu", "float32"), ("cuda", precision)):
        job = settings({"row": "base", "tiny": False, "model": small, "precision": chosen}, corpus)
        training_settings = job.training.model_copy(update={"tokens": 2000, "updates": 1})
        trainer = Trainer(job.model_copy(update={"training": training_settings}), World(0, 1, torch.device(device)))
        torch.manual_seed(1)
        trainer.model.load_state_dict(Transformer(job.model, job.vocabulary).state_dict())
        (update,) = trainer.updates(Corpus(train_files(Path(corpus))), 1)
        shards = [shard.to(trainer.world.device) for shard in update.shards if shard is not None]
        losses = torch.stack([trainer.losses(shard, 0.1)[0] for shard in shards]).sum()
        gradients = torch.autograd.grad(losses, trainer.parameters)
        flat = torch.cat([gradient.flatten().double().cpu() for gradient in gradients])
        results.append((losses.item(), flat))
    (loss, gradient), (other_loss, other) = results
    return abs(other_loss / loss - 1), float((other - gradient).norm() / gradient.norm())


def checks(common: dict[str, Any], corpus: str, devices: int, until: float) -> None:
    """Print how a rank's failure ends the others, whether two trainings are the same, and which kernels take long."""
    case = {**common, "row": "base", "processes": devices}
    for precision in () if common["tiny"] else ("float32", "bfloat16"):
        loss, gradient = beside_cpu(corpus, precision)
        print(f"{precision} beside the CPU's float32: loss {loss:.1e}, gradients {gradient:.1e}")
    failed = measured({**case, "fail": True}, corpus, until, eager=True)
    after = f"; all ended {failed['ended_after']:.1f} s later" if "ended_after" in failed else ""
    print(f"a rank that fails: {failed.get('error', 'not noticed')}{after}", flush=True)
    twice = [measured({**case, "deterministic": True}, corpus, until, eager=True) for _ in range(2)]
    errors = [one["error"] for one in twice if "error" in one]
    same = errors[0] if errors else "same" if twice[0]["weights"] == twice[1]["weights"] else "different"
    print(f"weights of two deterministic trainings: {same}", flush=True)
    values = measured({**case, "processes": 1, "profile": True}, corpus, until, eager=common["tiny"])
    print(f"kernels: {values['error']}" if "error" in values else "milliseconds of an update, by kernel")
    for name, milliseconds in values.get("kernels", []):
        print(f"{milliseconds:9.2f}  {name}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu", description=__doc__)
    parser.add_argument("--price", type=float, default=0.0, help="of one GPU for an hour")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--tiny", action="store_true", help="rehearse on a CPU")
    parser.add_argument("--count", action="store_true", help="count operations and bytes")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        die_with_parent()
        case, corpus, folder = options.work
        try:
            work(json.loads(case), corpus)
        except Exception as error:
            fail(Path(folder), error)
        return
    started = time.monotonic()
    announce(parser.prog)
    devices = 2 if options.tiny else most_processes(torch.cuda.device_count(), 8) if torch.cuda.is_available() else 0
    if not (devices or options.count):
        sys.exit("no GPU is here: give --tiny to rehearse, or --count")
    with tempfile.TemporaryDirectory() as folder:
        if options.tiny or options.count:
            training.WMT14_PAIRS = 20_000
        corpus = str(Path(folder) / "corpus")
        training.prepare(argparse.Namespace(row="base"), Path(corpus))
        if options.count:
            count(corpus)
            return
        common = {"updates": 2 if options.tiny else options.updates, "tiny": options.tiny}
        table(common, corpus, devices, options.price, started + TABLE_SECONDS)
        checks(common, corpus, devices, started + ALL_SECONDS)


if __name__ == "__main__":
    main()
