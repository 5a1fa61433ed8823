"""Label-smoothed cross-entropy over the vocabulary; section 5.4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nmt.common.shapes import Float, Int
from nmt.products import add_matmul_, matmul

ROWS = {"cpu": 2048, "cuda": 4096}
"""Positions per block of logits, an even number. Larger blocks need fewer additions to the table's gradient and launch
fewer GPU kernels. For the paper's vocabulary a block takes about 0.3 GB on a CPU and 1.2 GB on a GPU."""

PART = 2**19
"""On a CPU, logits whose loss is computed together: few enough that its caches keep them from one operation to the
next."""

BlockLoss = Callable[[Tensor, Tensor, float, bool], tuple[Tensor, Tensor, Tensor | None]]
"""The signature of `block_loss`."""


def block_loss(
    logits: Tensor, label: Tensor, eps_ls: float, needs_gradient: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the sums of a block's smoothed loss and negative log-likelihood, and the gradient of its logits.

    `logits`: [rows, vocabulary]; `label`: [rows, 1]. All but the two products with the table: what a compiler can fuse.
    """
    others = eps_ls / (logits.shape[1] - 1)
    z = logits.float()
    p = z.softmax(dim=1)
    # log p = z - log sum exp(z). The largest p is at least 1 / V, and no second exp of all logits is needed.
    log_sum = (z.amax(1) - p.amax(1).log()).double()
    # Sum rows in float32 first: a float64 sum of the block would copy it.
    picked = (z.gather(1, label).squeeze(1) - log_sum).sum()
    smoothed = -((1 - eps_ls - others) * picked + others * (z.sum(1) - logits.shape[1] * log_sum).sum())
    if not needs_gradient:
        return smoothed, -picked, None
    # d loss / d logits = p - q, with q = 1 - eps on the label and eps / (V - 1) on every other.
    gradient = p.sub_(others)
    gradient.scatter_add_(1, label, gradient.new_full(label.shape, -(1 - eps_ls - others)))
    return smoothed, -picked, gradient.to(logits.dtype)


def r_drop_loss(alpha: float, one_block: BlockLoss) -> BlockLoss:
    """Return `one_block` with R-Drop (arXiv:2106.14448), for two rows of logits per position, one after the other.

    Half of Eq. 4: the mean of both smoothed losses, and alpha / 4 times the sum of both divergences. Without a gradient
    it is `one_block`.
    """

    def both(
        logits: Tensor, label: Tensor, eps_ls: float, needs_gradient: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        smoothed, negative_log_likelihood, gradient = one_block(logits, label, eps_ls, needs_gradient)
        if gradient is None:
            return smoothed, negative_log_likelihood, None
        log_p = logits.float().log_softmax(dim=1).unflatten(0, (-1, 2))
        p, apart = log_p.exp(), log_p - log_p.flip(1)
        divergences = (p * apart).sum(2, keepdim=True)  # KL(P1 || P2), KL(P2 || P1)
        # d (their sum) / d (logits of P1) = P1 (log P1 - log P2 - KL(P1 || P2)) + P1 - P2
        d_logits = (apart - divergences).mul_(p).add_(p).sub_(p.flip(1)).flatten(0, 1)
        gradient = gradient.float().div_(2).add_(d_logits, alpha=alpha / 4).to(logits.dtype)
        return smoothed / 2 + alpha / 4 * divergences.double().sum(), negative_log_likelihood / 2, gradient

    return both


def _in_parts(
    one_block: BlockLoss, logits: Tensor, label: Tensor, eps_ls: float, needs_gradient: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return what `one_block` does; on a CPU it sees a few rows at a time, whose gradients replace their logits."""
    if logits.device.type != "cpu":
        return one_block(logits, label, eps_ls, needs_gradient)
    rows = max(2, PART // logits.shape[1] // 2 * 2)  # Even: `r_drop_loss` takes rows in twos.
    smoothed = torch.zeros((), dtype=torch.float64)
    negative_log_likelihood = torch.zeros_like(smoothed)
    for part, part_label in zip(logits.split(rows), label.split(rows), strict=True):
        part_smoothed, part_likelihood, gradient = one_block(part, part_label, eps_ls, needs_gradient)
        smoothed += part_smoothed
        negative_log_likelihood += part_likelihood
        if gradient is not None:
            part.copy_(gradient)
    return smoothed, negative_log_likelihood, logits if needs_gradient else None


class _SmoothedCrossEntropy(torch.autograd.Function):
    """The pre-softmax product and the loss in one, a block of rows at a time.

    The forward pass computes the gradient in the memory of each block's logits, so that the logits of all positions,
    which take 3.7 GB in float32 for the paper's batch, never exist at the same time.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, table: Tensor, labels: Tensor, eps_ls: float, grad_enabled: bool, one_block: BlockLoss
    ) -> tuple[Tensor, Tensor]:
        weights = table.to(states.dtype)
        needs_gradient = grad_enabled and (ctx.needs_input_grad[0] or ctx.needs_input_grad[1])
        smoothed = torch.zeros((), dtype=torch.float64, device=states.device)
        negative_log_likelihood = torch.zeros_like(smoothed)
        d_states = torch.empty_like(states) if needs_gradient else None
        if d_states is not None:
            d_states[len(labels) :] = 0
        d_table: Tensor | None = None
        rows, on_cpu = ROWS.get(states.device.type, ROWS["cpu"]), states.is_cpu
        # On CPUs the products include the rows without labels: `packing.pack` rounds the number of rows so that oneDNN
        # compiles few shapes.
        last = len(states) if on_cpu else len(labels)
        for start in range(0, len(labels), rows):
            block, label = states[start : min(start + rows, last)], labels[start : start + rows, None]
            logits = matmul(block, weights.T)
            block_smoothed, block_likelihood, gradient = _in_parts(
                one_block, logits[: len(label)], label, eps_ls, needs_gradient
            )
            if on_cpu and gradient is not None:
                logits[len(label) :] = 0
                gradient = logits
            smoothed += block_smoothed
            negative_log_likelihood += block_likelihood
            if d_states is not None and gradient is not None:
                d_states[start : start + len(gradient)] = matmul(gradient, weights)
                # The table's gradient takes 76 MB for the paper's vocabulary: no zeros are written and read first.
                if d_table is None:
                    d_table = matmul(gradient.T, block).to(table.dtype)
                elif d_table.dtype == states.dtype:
                    add_matmul_(d_table, gradient.T, block)
                else:
                    d_table += gradient.T @ block
        if d_states is not None and d_table is not None:
            ctx.save_for_backward(d_states, d_table)
        ctx.mark_non_differentiable(negative_log_likelihood)
        return smoothed, negative_log_likelihood

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        d_states, d_table = ctx.saved_tensors
        # In bfloat16 the factor, one over the batch's tokens, would be rounded by up to 0.4% for all gradients.
        scale = upstream[0].to(d_table.dtype)
        return (d_states.to(scale.dtype) * scale).to(d_states.dtype), d_table.mul_(scale), None, None, None, None


def smoothed_cross_entropy(
    states: Float[Tensor, "positions d_model"],
    table: Float[Tensor, "vocabulary d_model"],
    labels: Int[Tensor, "labelled"],
    eps_ls: float,
    one_block: BlockLoss = block_loss,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return sums over positions, in nats: the smoothed loss, and the negative log-likelihood (no gradient).

    Smoothing as in tensor2tensor: 1 - eps_ls on the label and eps_ls / (V - 1) on every other row. Positions after
    those with labels are left out. exp(second / labelled) is the perplexity. `one_block`: `block_loss`, which may be
    compiled, or that of `r_drop_loss`, whose sums are means over the two rows of a position.
    """
    # Under no_grad, `needs_input_grad` is still True for a parameter, and grad mode is always off inside `forward`.
    result: tuple[Tensor, Tensor] = _SmoothedCrossEntropy.apply(
        states, table, labels, eps_ls, torch.is_grad_enabled(), one_block
    )
    return result
