"""How fast the model learns: validation perplexity by update, beside fairseq's on the same subwords and settings.

    python -m tests.bench.parity --train BASE --valid BASE [--seeds 1 2 3] [--shape small] [--updates 1000]
        [--initialisation fairseq tensor2tensor glorot] [--ema-decay 0.98] [--fairseq BIN]

BASE.en and BASE.de hold subwords separated by spaces, a sentence a line. BIN is the folder bin of a virtual environment
with fairseq 0.12.2 (Python 3.10, torch 2.2.2); without it ours alone is trained. Both train the post-norm Transformer
with one table, Adam (0.9, 0.98), one peak rate and warm-up, smoothing 0.1, one update after another on the CPU, with as
many real target tokens an update. Printed: a JSON line of each curve, {update: perplexity}, and ours over fairseq's.
"""

import argparse
import json
import math
import os
import re
import subprocess
import tempfile
from pathlib import Path
from statistics import mean

import torch

from nmt.ids import EOS
from nmt.training.batches import Corpus, ahead, train_files
from nmt.training.distributed import World
from nmt.training.settings import Job
from nmt.training.trainer import Trainer
from tests.bench.conditions import announce
from tests.bench.training import Ids, write, write_bins

SHAPES = {
    "tiny": {"N": 4, "d_model": 128, "d_ff": 256, "h": 4, "d_k": 32, "d_v": 32, "P_drop": 0.3},
    "small": {"N": 3, "d_model": 256, "d_ff": 1024, "h": 4, "d_k": 64, "d_v": 64, "P_drop": 0.2},
}
FILL = 0.845  # real tokens of fairseq's batches divided by --max-tokens, in sentences of some 15 subwords
Curve = dict[int, float]  # perplexity by update


def read(base: str, ids: dict[str, int]) -> tuple[Ids, Ids]:
    """Ids of both sides, EOS included; new subwords get new ids."""
    sides: list[Ids] = []
    for language in ("en", "de"):
        lines = Path(f"{base}.{language}").read_text(encoding="utf-8").removesuffix("\n").split("\n")
        sides.append([[*(ids.setdefault(word, len(ids) + 4) for word in line.split()), EOS] for line in lines])
    return sides[0], sides[1]


def ours(a: argparse.Namespace, seed: int, initialisation: str, corpus: Path, vocabulary: int) -> Curve:
    model = {
        **SHAPES[a.shape], "attention_dropout": 0.0, "relu_dropout": 0.0, "positions": "sinusoidal",
        "position_layout": "interleaved", "max_positions": 512, "projection_biases": True,
        "initialisation": initialisation,
    }  # fmt: skip
    scale = a.peak / (SHAPES[a.shape]["d_model"] ** -0.5 * a.warmup**-0.5)
    training = {
        "updates": a.updates, "tokens": a.tokens, "shards": 1, "warmup_steps": a.warmup, "learning_rate_scale": scale,
        "beta1": 0.9, "beta2": 0.98, "epsilon": 1e-8, "eps_ls": 0.1, "precision": a.precision, "seed": seed,
        "ema_decay": a.ema_decay, "validate_every": a.every, "checkpoint_every": a.updates, "keep_checkpoints": 1,
        "resume_minutes": 60.0,
    }  # fmt: skip
    job = Job.model_validate({"model": model, "training": training, "vocabulary": vocabulary, "corpus": str(corpus)})
    valid, trainer, curve = Corpus([corpus / "valid.arrow"]), Trainer(job, World(0, 1, torch.device("cpu"))), Curve()
    for update in ahead(trainer.updates(Corpus(train_files(corpus)), a.updates)):
        trainer.step(update)
        if update.number % a.every == 0:
            curve[update.number] = round(math.exp(trainer.validate(valid)), 2)
    return curve


def fairseqs(a: argparse.Namespace, seed: int, work: Path) -> Curve:
    shape = SHAPES[a.shape]
    sides = ["--source-lang", "en", "--target-lang", "de"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    if not (work / "fairseq").exists():  # of another seed
        subprocess.run(
            [a.fairseq / "fairseq-preprocess", *sides, "--trainpref", a.train, "--validpref", a.valid, "--destdir",
             work / "fairseq", "--joined-dictionary"], check=True, capture_output=True, env=environment,
        )  # fmt: skip
    sizes = {"embed-dim": "d_model", "ffn-embed-dim": "d_ff", "attention-heads": "h", "layers": "N"}
    architecture = [f"--{side}-{name}={shape[ours]}" for side in ("encoder", "decoder") for name, ours in sizes.items()]
    command = [
        a.fairseq / "fairseq-train", work / "fairseq", "--cpu", "--arch=transformer_iwslt_de_en", *architecture,
        "--share-all-embeddings", f"--dropout={shape['P_drop']}", "--optimizer=adam", "--adam-betas=(0.9, 0.98)",
        "--clip-norm=0", f"--lr={a.peak}", "--lr-scheduler=inverse_sqrt", f"--warmup-updates={a.warmup}",
        "--warmup-init-lr=1e-07", "--criterion=label_smoothed_cross_entropy", "--label-smoothing=0.1",
        f"--max-tokens={round(a.tokens / FILL)}", f"--seed={seed}", "--log-format=simple", "--num-workers=0",
        f"--max-update={a.updates}", f"--validate-interval-updates={a.every}", "--validate-interval=1000000",
        "--no-epoch-checkpoints", "--no-save",
    ]  # fmt: skip
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    lines = re.findall(r"valid on 'valid' subset .*\| ppl ([\d.]+) .*num_updates (\d+)", output.stdout + output.stderr)
    return {int(update): float(perplexity) for perplexity, update in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True)
    parser.add_argument("--valid", required=True)
    parser.add_argument("--fairseq", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--initialisation", nargs="+", default=["fairseq"])
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--ema-decay", type=float, default=0.0)
    for name, default in (("updates", 1000), ("every", 250), ("tokens", 4096), ("warmup", 2000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--peak", type=float, default=0.005, help="the learning rate after the warm-up")
    a = parser.parse_args()
    announce("parity")
    torch.set_flush_denormal(True)
    with tempfile.TemporaryDirectory() as folder:
        corpus, ids = Path(folder, "binned"), dict[str, int]()
        corpus.mkdir()
        write_bins(corpus, *read(a.train, ids))
        valid = read(a.valid, ids)
        write(corpus / "valid.arrow", *valid, range(len(valid[0])))
        curves: dict[str, list[Curve]] = {}
        vocabulary = -(-(len(ids) + 4) // 64) * 64

        def keep(program: str, seed: int, curve: Curve) -> None:
            curves.setdefault(program, []).append(curve)
            print(json.dumps({"program": program, "seed": seed, **curve}), flush=True)

        for seed in a.seeds:
            if a.fairseq:
                keep("fairseq 0.12.2", seed, fairseqs(a, seed, Path(folder)))
            for initialisation in a.initialisation:
                keep(f"ours, {initialisation}", seed, ours(a, seed, initialisation, corpus, vocabulary))
    means = {
        name: {update: math.exp(mean(math.log(c[update]) for c in made)) for update in made[0]}
        for name, made in curves.items()
    }
    for name, curve in means.items():
        ratios = {u: round(curve[u] / means["fairseq 0.12.2"][u], 2) for u in curve} if a.fairseq else {}
        print(name, {update: round(value, 2) for update, value in curve.items()}, "over fairseq's:", ratios)


if __name__ == "__main__":
    main()
