"""The trainer seen from outside: what it builds, what it steps with, where dropout acts, and ten updates on record."""

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from trainings import ALONE, MakeJob, logged, run, write_arrow

from nmt import model, products
from nmt.flops import LengthSums, training_flops
from nmt.ids import BOS, EOS, PAD, UNK
from nmt.inference.decoder import Decoder
from nmt.inference.search import search
from nmt.inference.settings import SearchSettings
from nmt.model import Dropout, Transformer
from nmt.training import checkpoint
from nmt.training.batches import Corpus, Update, train_files, updates
from nmt.training.distributed import World
from nmt.training.history import interval_record, read_history
from nmt.training.settings import Job
from nmt.training.trainer import Trainer, is_long, out_of_memory
from tests.bench.training import row_settings


def trainer_of(make: dict[str, Any], **model: Any) -> Trainer:
    make["model"] |= model
    return Trainer(Job.model_validate(make), ALONE)


def valid_set(trainer: Trainer) -> Corpus:
    return Corpus([Path(trainer.job.corpus) / "valid.arrow"])


def an_update(trainer: Trainer, number: int = 1) -> Update:
    """The pairs of the first update, under any number."""
    corpus = Corpus(train_files(Path(trainer.job.corpus)))
    (update,) = updates(corpus, 1, 120, trainer.settings.shards, 0, 1, range(1, 2), trainer.job.model.h)
    return dataclasses.replace(update, number=number)


def test_adam_steps_with_the_settings_and_the_rate_of_eq_3(tiny_job: MakeJob) -> None:
    settings = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3, "warmup_steps": 10, "learning_rate_scale": 2.0}
    trainer = trainer_of(tiny_job(**settings))
    adam = torch.optim.Adam(list(copy.deepcopy(trainer.model).parameters()), betas=(0.8, 0.95), eps=1e-3)
    for t in (1, 2, 3):
        trainer.step(an_update(trainer, t))
        (group,) = adam.param_groups
        group["lr"] = 2.0 * 16**-0.5 * t * 10**-1.5
        for parameter, stepped in zip(group["params"], trainer.parameters, strict=True):
            parameter.grad = stepped.grad
        adam.step()
        torch.testing.assert_close(group["params"], trainer.parameters, rtol=0, atol=1e-6)


def test_r_drop_compares_the_two_passes_of_a_position(tiny_job: MakeJob) -> None:
    """Without dropout they are equal, and the update is the ordinary one; with it they are not."""
    trainers = [trainer_of(tiny_job(**more), P_drop=P_drop) for more in ({}, {"r_drop": 5.0}) for P_drop in (0.0, 0.5)]
    assert len({trainer.validate(valid_set(trainer)) for trainer in trainers}) == 1
    for trainer in trainers:
        trainer.step(an_update(trainer))
        trainer.measured.collect()
    for once, twice in zip(trainers[0].parameters, trainers[2].parameters, strict=True):
        torch.testing.assert_close(twice.grad, once.grad, rtol=1e-4, atol=1e-6)
    losses = [trainer.measured.state.interval.loss for trainer in trainers]
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)
    assert losses[3] > 1.01 * losses[1]
    once, _, twice, _ = (one.measured.take_interval() for one in trainers)
    assert twice.nll == pytest.approx(once.nll, rel=1e-5)


def test_with_ema_decay_the_model_is_a_mean_of_what_is_trained(tiny_job: MakeJob) -> None:
    """The same weights are trained; the share that the mean keeps of itself rises from 3/12 after update 2 to 0.4."""
    plain, averaged = (trainer_of(tiny_job(ema_decay=decay)) for decay in (0.0, 0.4))
    means = list[Tensor]()
    for number, share in ((1, 0.0), (2, 3 / 12), (3, 4 / 13), (5, 0.4), (6, 0.4)):
        for trainer in (plain, averaged):
            trainer.step(an_update(trainer, number))
        weights = [parameter.detach().clone() for parameter in plain.parameters]
        trained = [averaged.optimizer.state[parameter].get("trained") for parameter in averaged.parameters]
        assert all(map(torch.equal, weights, trained))
        means = [share * mean + (1 - share) * new for mean, new in zip(means or weights, weights, strict=True)]
        torch.testing.assert_close(averaged.parameters, means, rtol=0, atol=1e-6)
    assert averaged.validate(valid_set(averaged)) != plain.validate(valid_set(plain))


@contextmanager
def dropouts_watched(trainer: Trainer) -> Iterator[list[tuple[str, Tensor, Tensor]]]:
    """The name, input and output of each dropout that a pass goes through."""
    seen: list[tuple[str, Tensor, Tensor]] = []

    def watch(name: str) -> Callable[..., None]:
        return lambda module, given, result: seen.append((name, given[0].detach(), result.detach()))

    hooks = [
        module.register_forward_hook(watch(name.removesuffix(".dropout")))
        for name, module in trainer.model.named_modules() if isinstance(module, Dropout)
    ]  # fmt: skip
    yield seen
    for hook in hooks:
        hook.remove()


RESIDUAL = [
    "embedding", "embedding",  # The source's, then the target's.
    "encoder.0.add_norms.0", "encoder.0.add_norms.1",
    "decoder.0.add_norms.0", "decoder.0.add_norms.1", "decoder.0.add_norms.2",
]  # fmt: skip
ATTENTION = ["encoder.0.self_attention", "decoder.0.self_attention", "decoder.0.cross_attention"]
RELU = ["encoder.0.feed_forward", "decoder.0.feed_forward"]


def test_dropout_acts_where_section_5_4_and_settings_say(tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "has_own_backward", lambda x: False)  # test_fused.py: the other way is the same.
    shares, zeros = {"P_drop": 0.3, "attention_dropout": 0.2, "relu_dropout": 0.4}, dict[str, list[Tensor]]()

    def share_of(name: str) -> float:
        return shares["attention_dropout" if name in ATTENTION else "relu_dropout" if name in RELU else "P_drop"]

    trainer = trainer_of(tiny_job(shards=1), **shares)
    update = an_update(trainer)
    trainer.model.eval()  # As a validation leaves it.
    with dropouts_watched(trainer) as seen:
        trainer.step(update)
    blocks = len(update.shards[0].src.masks) if update.shards[0] else 0
    assert sorted(name for name, _, _ in seen) == sorted(RESIDUAL + blocks * ATTENTION + RELU)
    for name, given, result in seen:
        zeros.setdefault(name, []).append(result[given != 0] == 0)
        left = result != 0
        torch.testing.assert_close(result[left], given[left] / (1 - share_of(name)), rtol=1e-4, atol=0)
    for name, dropped in zeros.items():
        assert torch.cat(dropped).double().mean().item() == pytest.approx(share_of(name), abs=0.05), name


def test_validation_is_the_plain_loss_of_each_pair_without_dropout(tiny_job: MakeJob) -> None:
    trainer = trainer_of(tiny_job(eps_ls=0.3), P_drop=0.5, attention_dropout=0.5, relu_dropout=0.5)
    trainer.step(an_update(trainer))
    valid = valid_set(trainer)
    with dropouts_watched(trainer) as seen:
        loss = trainer.validate(valid)
    assert seen
    assert all(given is result or torch.equal(given, result) for _, given, result in seen)
    total, tokens = 0.0, 0
    for index in range(len(valid)):
        src, tgt = (torch.from_numpy(valid.padded(side, np.array([index]))[0]) for side in (0, 1))
        tgt_in = torch.cat((torch.tensor([BOS]), tgt[:-1]))
        logits = trainer.model.logits(trainer.model(src[None], tgt_in[None]))[0]
        total += F.cross_entropy(logits, tgt, reduction="sum").item()
        tokens += len(tgt)
    assert loss == pytest.approx(total / tokens, rel=1e-5)
    # The next update has its dropout again.
    with dropouts_watched(trainer) as seen:
        trainer.step(an_update(trainer, 2))
    assert not any(torch.equal(given, result) for _, given, result in seen)


def test_examples_have_no_special_in_them(tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a model finds one likeliest, the likeliest subword is taken."""
    trainer, scores = trainer_of(tiny_job()), torch.zeros(16)
    scores[[UNK, BOS, PAD, 9, EOS]] = torch.arange(5, 0, -1.0)
    monkeypatch.setattr(trainer.model, "logits", lambda states: scores.repeat(len(states), 1))
    examples = trainer.translate_examples(valid_set(trainer))
    assert {row for ids in examples.values() for row in ids} == {9}


def test_a_sample_is_spread_out_and_translated_in_batches(tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(tiny_job(validation_sample=5))
    corpus = valid_set(trainer)
    at_once = trainer.translate_sample(corpus)
    assert sorted(at_once) == [(len(corpus) - 1) * number // 4 for number in range(5)]
    assert all(len(ids) <= corpus.src_lengths[pair] * 1.2 + 10 for pair, ids in at_once.items())
    greedy = SearchSettings(beam=1, alpha=0.0, max_extra=9, stop="exact")
    for pair, ids in at_once.items():
        source = torch.from_numpy(corpus.padded(0, np.array([pair])))
        ((best,),) = search([Decoder(trainer.model)], source, greedy, 16)
        assert ids[: len(best.ids)] == best.ids != []
    monkeypatch.setattr("nmt.training.trainer.SAMPLE_BATCH", 1)
    assert trainer.translate_sample(corpus) == at_once


def test_a_sample_has_no_more_subwords_than_positions(tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """1.2 times a source's subwords plus 10 are more than `max_positions`, which holds the source alone."""
    trainer = trainer_of(tiny_job(validation_sample=5), positions="learned", max_positions=12)
    monkeypatch.setattr("nmt.training.trainer.EOS", 99)  # Never written.
    samples = trainer.translate_sample(valid_set(trainer))
    assert {len(ids) for ids in samples.values()} == {12}


def test_validation_computes_no_gradient(tiny_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The products of a forward pass are a third of an update's."""
    monkeypatch.setattr(products, "ONEDNN", False)  # It counts no others.
    trainer = trainer_of(tiny_job())
    write_arrow(tmp_path / "one.arrow", [([4, 5, 6, 2], [7, 8, 2])])
    with FlopCounterMode(display=False) as counter:
        trainer.validate(Corpus([tmp_path / "one.arrow"]))
    assert 3 * counter.get_total_flops() == training_flops(trainer.job.model, 16, LengthSums(1, 4, 3, 16, 9, 12))
    assert all(parameter.grad is None for parameter in trainer.parameters)


def masks(trainer: Trainer, number: int, first: int = 0) -> list[Tensor]:
    """What the source embedding's dropout drops in each of four shards of the same pairs, numbered from `first` on."""
    update = an_update(trainer, number)
    with dropouts_watched(trainer) as seen:
        trainer.step(dataclasses.replace(update, first=first, shards=4 * update.shards[:1]))
    return [result == 0 for name, _, result in seen if name == "embedding"][::2]


def test_random_streams_differ_by_seed_update_and_shard_alone(tiny_job: MakeJob) -> None:
    drawn = {
        (seed, number): masks(trainer_of(tiny_job(seed=seed, shards=4), P_drop=0.5), number)
        for seed, number in [(1, 1), (1, 2), (2, 1)]
    }
    assert len({mask.numpy().tobytes() for several in drawn.values() for mask in several}) == 3 * 4
    first = drawn[1, 1]
    # And by nothing else: neither what was drawn before, nor which shards the process has.
    trainer = trainer_of(tiny_job(shards=4), P_drop=0.5)
    torch.rand(17)
    masks(trainer, 5)
    assert all(map(torch.equal, first, masks(trainer, 1)))
    assert all(map(torch.equal, first[2:], masks(trainer, 1, first=2)))


class Products(TorchDispatchMode):
    """The types of the operands of products of two matrices, forward and backward, and their number.

    On a CPU those of attention are float32 always. Refuses operations on tensors of two devices, apart from copies and
    from numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.types, self.count = set[torch.dtype](), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten, name = torch.ops.aten, func.overloadpacket
        given = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if name not in {aten.copy_, aten._to_copy}:
            assert len({x.device.type for x in given if x.dim()}) <= 1, func
        products = {aten.mm, aten.addmm, aten.addmm_, torch.ops.mkldnn._linear_pointwise}
        if name in products or (name is aten.bmm and given[0].is_cuda):
            self.types |= {operand.dtype for operand in given[-2:]}
        self.count += name in {aten.mm, aten.addmm}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_precision_is_that_of_every_product_and_of_nothing_kept(tiny_job: MakeJob, precision: str) -> None:
    trainer = trainer_of(tiny_job(precision=precision))
    with Products() as products:
        trainer.step(an_update(trainer))
        trainer.validate(valid_set(trainer))
    assert products.types == {getattr(torch, precision)}
    # What the step leaves behind is in float32 always.
    for parameter in trainer.parameters:
        assert {parameter.dtype, parameter.grad.dtype} == {torch.float32}
        moments = trainer.optimizer.state[parameter]
        assert {moments["exp_avg"].dtype, moments["exp_avg_sq"].dtype} == {torch.float32}


@pytest.mark.parametrize(("r_drop", "passes"), [(0.0, 1), (5.0, 2)])
def test_an_update_needs_tensors_of_one_device_alone(
    tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch, r_drop: float, passes: int
) -> None:
    """On torch's device without data: the code that GPUs run, up to the optimizer."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # That device has none.
    job = Job.model_validate(tiny_job({"attention_dropout": 0.1, "relu_dropout": 0.1}, r_drop=r_drop))
    trainer = Trainer(job, World(0, 1, torch.device("meta")))
    conditions = trainer.conditions()
    assert (conditions.deterministic, conditions.portable, conditions.threads) == (False, False, 0)
    assert trainer.settings.shards > trainer.shards == 1
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(trainer.optimizer, "step", lambda: None)
    monkeypatch.setattr(trainer.measured, "add_update", lambda *given: None)
    update = an_update(trainer)
    with Products() as products:
        trainer.step(update)
    assert {p.grad.device.type for p in trainer.parameters if p.grad is not None} == {"meta"}
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in trainer.parameters)
    # Forward: 4 of the encoder's layer (q, k, v; output; two of the feed-forward network), 7 of the decoder's and the
    # logits; twice as many backward. Three products more in each attention would be 36 in all.
    assert products.count == 3 * (11 * passes + 1) * len([shard for shard in update.shards if shard])


def test_out_of_memory_is_told_from_other_errors() -> None:
    for text in (
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA driver error: out of memory",
        "Triton Error [CUDA]: out of memory",
    ):
        assert out_of_memory(RuntimeError(text)), text
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))


@pytest.mark.parametrize(
    ("row", "changed", "compiled"),
    [
        ("sample", {}, False), ("small", {}, False), ("base", {}, True), ("big", {}, True),
        ("base", {"updates": 1500}, False), ("base", {"updates": 1500, "r_drop": 5.0}, True),
    ],
)  # fmt: skip
def test_what_ends_sooner_than_a_compilation_is_not_compiled(row: str, changed: dict[str, Any], compiled: bool) -> None:
    settings = row_settings(row, "en-de")
    settings["training"] |= {"precision": "bfloat16", **changed}
    assert is_long(Job.model_validate({**settings, "vocabulary": 37_056, "corpus": ""})) is compiled


def test_the_gradient_is_of_the_mean_over_all_the_updates_tokens(tiny_job: MakeJob) -> None:
    """Autograd's gradient of torch's own smoothed loss, pair by pair, over all target tokens."""
    trainer = trainer_of(tiny_job(eps_ls=0.2), P_drop=0.0)
    update = an_update(trainer)
    twin = Transformer(trainer.job.model, 16).eval()
    twin.load_state_dict(trainer.model.state_dict())
    total, likelihood = torch.zeros(()), 0.0
    for batch in filter(None, update.shards):
        logits = twin.logits(twin.states(batch.src, batch.tgt_in))
        # 1 - e and e / (V - 1) are torch's 1 - t + t / V and t / V at t = e V / (V - 1).
        total = total + F.cross_entropy(logits, batch.labels, label_smoothing=0.2 * 16 / 15, reduction="sum")
        likelihood += F.cross_entropy(logits, batch.labels, reduction="sum").item()
    loss = total / update.sums.target
    loss.backward()
    trainer.step(update)
    for ours, theirs in zip(trainer.parameters, twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    interval = trainer.measured.take_interval()
    report = interval_record(trainer.job, trainer.measured.state, interval)
    norm = nn.utils.get_total_norm([p.grad for p in twin.parameters() if p.grad is not None]).item()
    assert report["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert report["nll"] == pytest.approx(likelihood / update.sums.target, rel=1e-5)
    assert report["gradient_norm"] == pytest.approx(norm, rel=1e-4)
    assert report["tokens"] == update.sums.target
    sides = [side for batch in update.shards if batch for side in (batch.src, batch.tgt_in)]
    padded = sum(mask.numel() for side in sides for mask in side.masks)
    assert trainer.measured.state.padding == pytest.approx(1 - (update.sums.source + update.sums.target) / padded)


def test_a_report_is_of_the_updates_since_the_last(tiny_job: MakeJob) -> None:
    alone, together = (trainer_of(tiny_job(), P_drop=0.0) for _ in range(2))
    singly = []
    for update in alone.updates(Corpus(train_files(Path(alone.job.corpus))), 3):
        alone.step(update)
        together.step(update)
        singly.append(alone.measured.take_interval())
    interval = together.measured.take_interval()
    assert (interval.updates, interval.sums) == (3, together.measured.state.sums)
    for name in ("loss", "nll", "norm"):
        assert getattr(interval, name) == pytest.approx(sum(getattr(one, name) for one in singly))


GOLDEN = [3.628143, 2.994527, 2.943585, 2.655302, 2.684351, 2.669, 2.688797, 2.740887, 2.624404, 2.602759]
"""The losses of ten updates, as this code had them; a change means another training, or another random generator."""


def test_ten_updates_follow_the_losses_on_record_and_are_kept_at_intervals(tmp_path: Path, tiny_job: MakeJob) -> None:
    every = {"validate_every": 4, "checkpoint_every": 3, "keep_checkpoints": 2}
    dropout = {"attention_dropout": 0.1, "relu_dropout": 0.1}
    assert run(tiny_job(dropout, updates=10, warmup_steps=5, shards=4, **every), tmp_path)
    assert logged(tmp_path, "loss") == pytest.approx(GOLDEN, rel=1e-4)
    assert logged(tmp_path, "valid_loss")[-1] == pytest.approx(2.542367, rel=1e-4)
    records = read_history(tmp_path / "history.jsonl")
    # And after the last update.
    assert [record["update"] for record in records if "valid_loss" in record] == [4, 8, 10]
    assert [record["update"] for record in records if "loss" in record] == [*range(1, 11)]
    kept = [checkpoint.update_of(path) for path in checkpoint.checkpoints(tmp_path / "checkpoints")]
    assert kept == [6, 9]
    assert [path.name for path in (tmp_path / "resume").iterdir()] == ["update-00000010"]
    rates = [16**-0.5 * min(number**-0.5, number * 5**-1.5) for number in range(1, 11)]
    assert logged(tmp_path, "learning_rate") == pytest.approx(rates)
    assert records[-1]["ppl"] == pytest.approx(math.exp(records[-1]["nll"]))
