"""One update of a training, section 5: sum the gradients, divide by the update's target tokens, step Adam."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from nmt.common.cpu import processor
from nmt.errors import InputError
from nmt.flops import LengthSums, training_flops
from nmt.ids import BOS, EOS, PAD, UNK
from nmt.loss import BlockLoss, block_loss, r_drop_loss, smoothed_cross_entropy
from nmt.model import Transformer
from nmt.packing import pack_tensor
from nmt.portable import block_loss as portable_loss
from nmt.training.batches import Batch, Corpus, Update, cut, make_batch, updates
from nmt.training.distributed import World
from nmt.training.gradients import Gradients, OverlappedGradients
from nmt.training.measurements import Measurements
from nmt.training.schedule import learning_rate
from nmt.training.settings import Job
from nmt.training.state import ResumeConditions, TrainState

if TYPE_CHECKING:
    from numpy.typing import NDArray

VALIDATION_POSITIONS = 2048  # positions a side of a validation batch: enough to fill a matrix product on a CPU
EXAMPLES = 6  # validation pairs that are translated at every validation, for people to read
SAMPLE_BATCH = 64  # pairs of the validation sample that are translated at once
OUT_OF_MEMORY = re.compile("DefaultCPUAllocator|CU(BLAS|DNN)_STATUS_ALLOC_FAILED|CUDA.*out of memory")
COMPILED_OPERATIONS = 2e16
"""A training of at least so many operations is compiled. A GPU does fewer in about the time that compiling takes."""
TRAINED = "trained"
"""With `ema_decay`, the key of a parameter's trained value in the optimizer's state, with its moments."""
STOP_EVERY = 4
"""Every so many updates, about once a second, several GPUs ask each other whether to stop, and wait for the answer."""


class Trainer:
    """One rank's model, optimizer, gradients and measurements. `step` is the update."""

    def __init__(self, job: Job, world: World) -> None:
        self.job, self.world = job, world
        self.settings = job.training
        if self.settings.deterministic and world.device.type == "cuda":
            use_deterministic_kernels()
        torch.manual_seed(self.settings.seed)
        self.model = Transformer(job.model, job.vocabulary, job.target_vocabulary).to(world.device)
        self.parameters = list(self.model.parameters())
        self.block_loss: BlockLoss = portable_loss if self.settings.arithmetic == "portable" else block_loss
        self.compiled = False
        # Compiled sums are cut by the first batch's size, so that their bits depend on the batch, too.
        compiling = world.device.type == "cuda" and not self.settings.deterministic and is_long(job)
        if compiling and compiler_works(world.device):
            self.compile()
        if self.settings.r_drop:
            self.block_loss = r_drop_loss(self.settings.r_drop, self.block_loss)
        self.optimizer = torch.optim.Adam(
            self.parameters, betas=(self.settings.beta1, self.settings.beta2), eps=self.settings.epsilon, fused=True
        )
        self.overlapped: OverlappedGradients | None = None
        if world.size > 1 and not self.in_fixed_order:
            self.overlapped = OverlappedGradients(self.parameters)
        recorded = self.settings.model_dump(include={"updates", "validate_every"})
        self.measured = Measurements(world, TrainState(processes=world.size, conditions=self.conditions(), **recorded))
        self.stop_requested = False

    def compile(self) -> None:
        """Compile the layers and the loss, for any batch size and length: fuses what lies between matrix products.

        Not done on CPUs, where it gains little and is slow to start.
        """
        self.compiled = True
        # Sizes of blocks that are equal by chance would be compiled as one.
        torch.fx.experimental._config.use_duck_shape = False
        for layer in (*self.model.encoder, *self.model.decoder):
            # Layers of a stack share their code, so two are compiled, not 2N. Dynamic sizes avoid a compilation for
            # every new length.
            cast("nn.Module", layer).compile(dynamic=True)
        compiled_loss = torch.compile(block_loss, dynamic=True)

        def fixed_vocabulary(logits: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor | None]:
            torch._dynamo.mark_static(logits, 1)  # Kernels for any width of rows cannot use aligned loads.
            return compiled_loss(logits, *others)

        self.block_loss = fixed_vocabulary

    @property
    def update(self) -> int:
        """The last finished update."""
        return self.measured.state.update

    @property
    def in_fixed_order(self) -> bool:
        """Whether sums have a fixed order, so that the weights do not depend on the number of processes."""
        return self.world.device.type == "cpu" or self.settings.deterministic

    @property
    def shards(self) -> int:
        """How many parts an update is cut into: one a process where sums have no fixed order, as GPUs are fastest."""
        return self.settings.shards if self.in_fixed_order else self.world.size

    def conditions(self) -> ResumeConditions:
        """Return what must be the same for a resumed training to be bit-identical."""
        on_cpu = self.world.device.type == "cpu"
        return ResumeConditions(
            device="cpu" if on_cpu else torch.cuda.get_device_name(self.world.device),
            processor=processor() if on_cpu else "",
            threads=torch.get_num_threads() if on_cpu else 0,
            compiled=self.compiled,
            deterministic=self.in_fixed_order,
            torch=torch.__version__,
            portable=self.settings.arithmetic == "portable",
        )

    def updates(self, corpus: Corpus, last: int) -> Iterator[Update]:
        """Yield this rank's share of the updates after the last finished one."""
        plan = self.settings.seed, self.settings.tokens, self.shards
        part = self.world.rank, self.world.size
        return updates(corpus, *plan, *part, range(self.update + 1, last + 1), self.job.model.h)

    def step(self, update: Update) -> None:
        """Train on an update: sum gradients over shards and ranks, divide once by all target tokens, step Adam.

        The learning rate is Eq. 3.
        """
        self.model.train()
        self._swap_weights()
        self.optimizer.zero_grad(set_to_none=self.overlapped is None)
        gradients = self.overlapped or Gradients(self.parameters, self.world)
        losses = torch.zeros(len(update.shards), 2, dtype=torch.float64, device=self.world.device)
        for number, (shard, own_losses) in enumerate(zip(update.shards, losses, strict=True), start=update.first):
            # By the position in the training, so that resuming needs no random state.
            seed = random_seed(self.settings.seed, update.number, number)
            own_losses[:] = self._backward(shard, seed, update.sums.target, gradients)
        total = gradients.total()
        for parameter, gradient in zip(self.parameters, total, strict=True):
            parameter.grad = gradient
        norm = torch.nn.utils.get_total_norm(total)
        # Fused Adam leaves weights and moments unchanged if found_inf is 1, so the host need not wait for the device.
        # GradScaler sets the same attribute, which the class does not declare.
        self.optimizer.found_inf = (~torch.isfinite(norm)).float()  # type: ignore[attr-defined] # not declared
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(update.number, self.job.model.d_model, self.settings)
        self.optimizer.step()
        if self.settings.ema_decay:
            self._average_weights(update.number)
        self.measured.add_update(update, losses, norm)

    def _swap_weights(self) -> None:
        """Exchange the model's weights for those that the optimizer keeps: with `ema_decay`, means for trained ones."""
        for parameter in self.parameters:
            if TRAINED in (kept := self.optimizer.state[parameter]):
                parameter.data, kept[TRAINED] = kept[TRAINED], parameter.data

    def _average_weights(self, number: int) -> None:
        """Move the means towards the trained weights and give them to the model.

        Early means follow faster, so that they forget the first weights.
        """
        states = [self.optimizer.state[parameter] for parameter in self.parameters]
        if TRAINED in states[0]:
            decay = min(self.settings.ema_decay, (1 + number) / (10 + number))
            get_ema_multi_avg_fn(decay)([kept[TRAINED] for kept in states], self.parameters, number)
            self._swap_weights()
        else:
            for parameter, kept in zip(self.parameters, states, strict=True):
                kept[TRAINED] = parameter.detach().clone()

    def _backward(
        self, shard: Batch | None, seed: int, tokens: int, gradients: Gradients | OverlappedGradients
    ) -> Tensor:
        """Run forward and backward pass of a shard and add its gradients; return its losses, [2].

        Raises InputError if memory runs out.
        """
        if shard is None:
            gradients.backward(None)
            return torch.zeros(2)
        # Not torch.manual_seed, which takes 2 ms without a GPU: it formats the stack for each device that is not there.
        (torch.cuda if self.world.device.type == "cuda" else torch.default_generator).manual_seed(seed)
        try:
            smoothed, negative_log_likelihood = self.losses(shard.to(self.world.device), self.settings.eps_ls)
            gradients.backward(smoothed / tokens)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            source, target = int((shard.src.ids != PAD).sum()), len(shard.labels)
            smaller = f"raise training.shards, which is {self.settings.shards}"
            if not self.in_fixed_order:
                more = "" if self.settings.shards > self.world.size else f", and {smaller}"
                smaller = f"set training.deterministic: true, with which shards take turns{more}"
            raise InputError(
                f"a shard of {source:,} source and {target:,} target subwords does not fit into this device's memory: "
                f"{smaller}, or use a larger device or fewer processes on it"
            ) from error
        return torch.stack((smoothed.detach(), negative_log_likelihood))

    def losses(self, batch: Batch, eps_ls: float) -> tuple[Tensor, Tensor]:
        """Return smoothed loss and negative log-likelihood of a batch, summed over its target tokens."""
        bfloat16 = self.settings.precision == "bfloat16"
        labels = batch.labels
        with torch.autocast(self.world.device.type, dtype=torch.bfloat16, enabled=bfloat16):
            states = self.model.states(batch.src, batch.tgt_in)
            if self.settings.r_drop and self.model.training:
                again = self.model.states(batch.src, batch.tgt_in)
                states, labels = torch.stack((states, again), 1).flatten(0, 1), labels.repeat_interleave(2)
        if bfloat16:
            # Without this cast the largest product, with the vocabulary, would run in float32, which LayerNorm returns.
            states = states.bfloat16()
        return smoothed_cross_entropy(states, self.model.output_table, labels, eps_ls, self.block_loss)

    @torch.no_grad()
    def validate(self, corpus: Corpus) -> float:
        """Return the unsmoothed negative log-likelihood per target subword, in nats; its exp is the perplexity.

        The corpus alone decides the batches. Ranks take them in turn.
        """
        self.model.eval()
        count = -(-corpus.tokens // (2 * VALIDATION_POSITIONS))
        _, parts = cut(corpus, np.arange(len(corpus)), count)
        likelihoods = torch.zeros(count, dtype=torch.float64, device=self.world.device)
        for number in range(self.world.rank, count, self.world.size):
            if len(parts[number]):
                batch = make_batch(corpus, [parts[number]], self.job.model.h).to(self.world.device)
                likelihoods[number] = self.losses(batch, 0.0)[1]
        return float(self.world.sum(likelihoods).sum()) / int(corpus.tgt_lengths.sum(dtype=np.int64))

    def translate_examples(self, corpus: Corpus) -> dict[int, list[int]]:
        """Return greedy translations of EXAMPLES pairs, short to long, without EOS, by the pair's index in the corpus.

        They have at most the subwords of the longest reference: an untrained model often does not end a sentence.
        """
        ranks = np.linspace(0.2, 0.8, EXAMPLES) * (len(corpus) - 1)
        pairs = np.unique(np.argsort(corpus.tgt_lengths, kind="stable")[ranks.astype(int)])
        return self.translate(corpus, pairs, int(corpus.tgt_lengths[pairs].max()))

    def translate_sample(self, corpus: Corpus) -> dict[int, list[int]]:
        """Return this rank's share of the greedy translations of `validation_sample` pairs.

        They have at most 1.2 times the source's subwords plus 10, as in fairseq.
        """
        pairs = np.unique(np.linspace(0, len(corpus) - 1, self.settings.validation_sample).astype(int))
        pairs = pairs[np.argsort(corpus.src_lengths[pairs], kind="stable")]
        translations: dict[int, list[int]] = {}
        for first in range(self.world.rank * SAMPLE_BATCH, len(pairs), self.world.size * SAMPLE_BATCH):
            batch = pairs[first : first + SAMPLE_BATCH]
            longest = [int(length) * 6 // 5 + 10 for length in corpus.src_lengths[batch]]
            written = self.translate(corpus, batch, longest[-1])
            translations |= {pair: ids[:most] for (pair, ids), most in zip(written.items(), longest, strict=True)}
        return translations

    @torch.no_grad()
    def translate(self, corpus: Corpus, pairs: NDArray[np.integer], longest: int) -> dict[int, list[int]]:
        """Return greedy translations of the sources of `pairs`, of at most `longest` subwords, by the pair's index."""
        self.model.eval()
        if self.job.model.positions == "learned":
            longest = min(longest, self.job.model.max_positions)
        src = torch.from_numpy(corpus.padded(0, pairs)).to(self.world.device)
        ids = torch.full((len(src), 1), BOS, device=self.world.device)
        # Every step is one subword longer: too few steps to be worth a compilation.
        with torch.compiler.set_stance("force_eager") if self.compiled else nullcontext():
            packed = pack_tensor(src, self.job.model.h)
            memory = self.model.encode(packed)
            for _ in range(longest):  # ids: [pairs, written]
                states = self.model.decode(pack_tensor(ids, packed.heads), memory, packed)
                logits = self.model.logits(states.view(len(ids), -1, states.shape[1])[:, -1])
                logits[:, [PAD, BOS, UNK]] = -torch.inf
                ids = torch.cat([ids, logits.argmax(1, keepdim=True)], 1)
                if (ids == EOS).any(1).all():
                    break
        rows = [[*row, EOS] for row in ids[:, 1:].tolist()]
        return {int(pair): row[: row.index(EOS)] for pair, row in zip(pairs, rows, strict=True)}

    def any_stop_requested(self) -> bool:
        """Return whether any rank was asked to stop. Several GPUs ask each other every STOP_EVERY updates only."""
        if self.world.size > 1 and self.world.device.type == "cuda" and self.update % STOP_EVERY:
            return False
        return any(self.world.gather(self.stop_requested))


def out_of_memory(error: RuntimeError) -> bool:
    """Return whether memory ran out. On a CPU, and outside torch's allocator on a GPU, only the message says so."""
    return isinstance(error, torch.OutOfMemoryError) or bool(OUT_OF_MEMORY.search(str(error)))


def is_long(job: Job) -> bool:
    """Return whether a training is long enough to be worth minutes of compilation."""
    tokens = job.training.updates * job.training.tokens
    sums = LengthSums(0, tokens, tokens, 0, 0, 0)
    return job.training.passes * training_flops(job.model, job.output_rows, sums) >= COMPILED_OPERATIONS


def compiler_works(device: torch.device) -> bool:
    """Return whether torch can compile for a device: not with TORCHDYNAMO_DISABLE=1, nor without a C++ compiler."""
    if torch._dynamo.config.disable:
        return False
    try:
        torch.compile(lambda x: x.sin() + x)(torch.ones(8, device=device))
    except Exception as error:
        # torch raises errors of many types if a tool is missing. None of them prevents training.
        reason = str(error).strip().split("\n")[0]
        print(f"torch.compile does not work here ({reason}): training continues, but slower", file=sys.stderr)
        return False
    return True


def use_deterministic_kernels() -> None:
    """Make torch use kernels on GPUs that add in a fixed order, and raise an error where it has none."""
    # cuBLAS reads this when its first handle is made.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Every element of a new tensor is written before it is read.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # documented


def random_seed(seed: int, update: int, shard: int) -> int:
    """Return the seed of a shard's random numbers: distinct for every shard, the same on any process."""
    mixed = 0
    for part in (seed, update, shard):
        mixed = ((mixed ^ part) * 0x9E3779B97F4A7C15 + 0x7F4A7C15) % 2**64
        mixed ^= mixed >> 29
    return mixed % 2**63
