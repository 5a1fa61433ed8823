"""The table of `training.arithmetic: portable`: a row's first updates have one hash, whatever computes them.

`PORTABLE_UPDATES` sets how many (100). `PORTABLE_PYTHONS` names other interpreters, separated by colons, with other
versions of torch or for other processors.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from clones import Clone

PROGRAM = """
import os, sys, time
from pathlib import Path
import torch, yaml
from nmt.training.settings import Job
from nmt.training.chain import read_chain
from nmt.training.distributed import join_world
from nmt.training.loop import train
folder, started = Path(sys.argv[1]), time.process_time()
folder.mkdir(exist_ok=True)
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
job = Job.model_validate(yaml.safe_load(Path(sys.argv[2]).read_text()))
with join_world(4, f"file://{folder}/store") as world:
    train(job, folder, world)
spent = f"{time.process_time() - started:.0f} s of processor"
if world.main:  # The other ranks may end before the last link is written.
    print("torch", torch.__version__, spent, read_chain(folder / "chain.jsonl")[-1].link)
"""
CONDITIONS: dict[str, dict[str, str]] = {
    "one thread": {},
    "two threads": {"OMP_NUM_THREADS": "2"},
    "two processes": {"WORLD_SIZE": "2"},
    "four processes": {"WORLD_SIZE": "4"},
    "SSE4": {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "AVX-512": {"ATEN_CPU_CAPABILITY": "avx512", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    "MKL compatible": {"MKL_CBWR": "COMPATIBLE"},
}


ROWS = {"sample": ("en-de", "sample"), "parse-sample": ("en-tree", "sample-trees")}


@pytest.fixture(params=ROWS)
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the repository with the binned sample of a row and a job of 4 shards."""
    clone, (pair, corpus) = Clone(tmp_path / "clone"), ROWS[request.param]
    overrides = {"training": {"arithmetic": "portable", "precision": "float32", "shards": 4}}
    params = {"row": request.param, "pair": pair, "corpus": corpus, "seed": 1, "overrides": overrides}
    (clone.folder / "params.yaml").write_text(yaml.safe_dump(params))
    for stage in ("resolve", "download", "tokenize", "learn_subwords", "binarize"):
        subprocess.run([sys.executable, "-m", "pipeline", stage], cwd=clone.folder, check=True)
    settings = yaml.safe_load((clone.folder / "results/config.yaml").read_text())
    stats = yaml.safe_load((clone.folder / "data/binned/stats.json").read_text())
    updates = int(os.environ.get("PORTABLE_UPDATES", "100"))
    job = {"model": settings["model"], "training": {**settings["training"], "updates": updates}}
    job |= {key: stats[key] for key in ("vocabulary", "target_vocabulary") if key in stats}
    job["corpus"] = str(clone.folder / "data/binned")
    (clone.folder / "job.yaml").write_text(yaml.safe_dump(job))
    return clone.folder


@pytest.mark.timeout(7200)
def test_one_hash(corpus: Path, tmp_path: Path) -> None:
    links = set()
    cases = [(sys.executable, *case) for case in CONDITIONS.items()]
    cases += [(python, python, {}) for python in os.environ.get("PORTABLE_PYTHONS", "").split(":") if python]
    for number, (python, name, changes) in enumerate(cases):
        command = [python, "-c", PROGRAM, str(tmp_path / str(number)), str(corpus / "job.yaml")]
        variables = {**os.environ, "PYTHONPATH": str(corpus), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        running = [
            subprocess.Popen(
                command, env={**variables, **changes, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
            )
            for rank in range(int(changes.get("WORLD_SIZE", "1")))
        ]
        outputs = [process.communicate()[0] for process in running]
        assert [process.returncode for process in running] == [0] * len(running), name
        print(f"{name}: {outputs[0].strip()}")
        links.add(outputs[0].split()[-1])
    assert len(links) == 1
