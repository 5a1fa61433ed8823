"""Compiled layers compute what they computed before, for any length, without compiling every length anew."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from trainings import MakeJob

from nmt.training import gradients
from nmt.training.batches import Corpus, train_files
from nmt.training.distributed import World
from nmt.training.settings import Job
from nmt.training.trainer import Trainer, compiler_works

CPU = torch.device("cpu")
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]

# In a process of its own: users do not compile the checks of types that tests have. With the code for GPUs, where
# training compiles, and without inductor, which would take a minute to write C++ that no GPU runs. The gradients'
# graph is made for the loss alone, which computes in place: for layers it takes ten seconds.
PROBE = """
import json, sys
from dataclasses import replace
from pathlib import Path
import torch
from torch._dynamo.utils import counters
from nmt import model, products
for module in (products, model):
    gpus = Path(module.__file__).read_text().replace("x.is_cpu", "False")
    exec(compile(gpus, module.__file__, "exec"), vars(module))
from nmt.loss import block_loss
from nmt.training import batches
from nmt.training.settings import Job
from test_compilation import losses_of
inductor = torch.compile
torch.compile = lambda f, **how: inductor(f, backend="aot_eager" if f is block_loss else "eager", **how)
def attend(q, k, v, q_starts, k_starts, longest_q, longest_k, *, window_size):
    return q + v.mean() + 1e-6 * (k.sum() + longest_q * q_starts.sum() + longest_k * k_starts.sum() + window_size[1])
for attention, job in json.loads(sys.argv[1]).items():
    if attention == "flash":
        from torch.nn.attention import varlen
        varlen.varlen_attn = attend
        packed = batches.pack
        batches.pack = lambda *given, **how: replace(packed(*given, **how), has_flash=True)
    torch._dynamo.reset()
    counters.clear()
    both = [losses_of(Job.model_validate(job), compiled=compiled) for compiled in (False, True)]
    print(json.dumps([attention, *both, counters["stats"]["unique_graphs"], counters["graph_break"]]))
"""


def losses_of(job: Job, *, compiled: bool) -> list[float]:
    """The losses of all updates."""
    made = Trainer(job, World(0, 1, CPU))
    assert not made.conditions().compiled
    if compiled:
        made.compile()
        assert made.conditions().compiled
        # As on several GPUs; the others have added nothing.
        gradients.all_reduce = lambda bucket, **_: Mock()
        made.overlapped = gradients.OverlappedGradients(made.parameters)
    losses = []
    for update in made.updates(Corpus(train_files(Path(job.corpus))), job.training.updates):
        made.step(update)
        interval = made.measured.take_interval()
        losses.append(interval.loss / interval.sums.target)
    return losses


def test_the_same_losses_from_few_compilations(tiny_job: MakeJob) -> None:
    model = {"N": 2, "P_drop": 0.2, "relu_dropout": 0.1}
    jobs = {
        "products": tiny_job({**model, "attention_dropout": 0.1}, shards=1, updates=12, tokens=300),
        # Small updates have fewer blocks, and each number of blocks is compiled anew.
        "flash": tiny_job(model, shards=1, updates=6, tokens=600, precision="bfloat16"),
    }
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests", HERE)))}
    result = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(jobs)],
        cwd=ROOT, env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    told = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("[")]
    assert [attention for attention, *_ in told] == ["products", "flash"]
    for attention, plain, compiled, graphs, breaks in told:
        assert compiled == pytest.approx(plain, rel=1e-4), attention
        # Two kinds of layer and the loss, each again where a batch or a length of 1 is a case of its own.
        assert 3 <= graphs <= 2 * 3, attention
        assert not breaks, attention


def test_training_continues_uncompiled(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    compiled = Mock(side_effect=RuntimeError("No working C++ compiler found\nmore about it"))
    monkeypatch.setattr(torch, "compile", lambda function: compiled)
    assert not compiler_works(CPU)
    said = "torch.compile does not work here (No working C++ compiler found): training continues, but slower\n"
    assert capsys.readouterr().err == said
