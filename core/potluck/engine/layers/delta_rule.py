"""The gated delta rule in torch: one token after the other, or chunk by chunk.

All is f32. T tokens, H value heads with K numbers in a key and V in a value; see `DeltaNetSpec` for the formula.
Checked against `transformers/models/qwen3_next/modeling_qwen3_next.py`.
"""

import torch
from torch import Tensor

_CHUNK = 64  # tokens; twice as many take as long on a CPU, and twice the memory for their products
_EPSILON = 1e-6  # of the norm of queries and keys; no config has it


def unit(x: Tensor) -> Tensor:
    """Vectors (…, K) of length one."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPSILON)


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decays: Tensor, rates: Tensor, state: Tensor
) -> Tensor:
    """What the tokens read from the state, (T, H, V); the state (H, K, V) becomes that after them.

    Args:
        q: (T, H, K), scaled.
        k: (T, H, K), of length one.
        v: (T, H, V).
        log_decays: (T, H), of g, at most 0.
        rates: (T, H), β.
        state: (H, K, V).
    """
    if len(q) == 1:
        return _one(q[0], k[0], v[0], log_decays[0].exp(), rates[0], state)[None]
    out = torch.empty_like(v)
    for first in range(0, len(q), _CHUNK):
        some = slice(first, first + _CHUNK)
        out[some] = _many(q[some], k[some], v[some], log_decays[some], rates[some], state)
    return out


def _one(q: Tensor, k: Tensor, v: Tensor, decays: Tensor, rates: Tensor, state: Tensor) -> Tensor:
    state.mul_(decays[:, None, None])
    known = (k[:, None] @ state)[:, 0]  # (H, V)
    state.baddbmm_(k[:, :, None], ((v - known) * rates[:, None])[:, None])
    return (q[:, None] @ state)[:, 0]


def _many(
    q: Tensor, k: Tensor, v: Tensor, log_decays: Tensor, rates: Tensor, state: Tensor
) -> Tensor:
    """The same of a chunk, by products of matrices (https://arxiv.org/abs/2412.06464, section 3.3).

    What each token writes depends on what those before it wrote: a triangular system of equations.
    """
    q, k, v = (each.transpose(0, 1) for each in (q, k, v))  # (H, T, …)
    rates = rates.t()[..., None]  # (H, T, 1)
    sums = log_decays.t().cumsum(-1)  # (H, T): the decay from the chunk's beginning to each token
    seen = torch.ones(len(sums[0]), len(sums[0]), dtype=torch.bool, device=q.device).tril()
    between = (sums[:, :, None] - sums[:, None]).masked_fill_(~seen, -torch.inf).exp_()  # (H, T, T)
    since = sums.exp()[..., None]  # (H, T, 1)
    system = (rates * k) @ k.transpose(1, 2) * between
    wanted = rates * (v - since * (k @ state))
    written = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    out = since * (q @ state) + (q @ k.transpose(1, 2) * between) @ written
    left = (sums[:, -1:] - sums).exp()[..., None]  # (H, T, 1): the decay from each token to the end
    state.mul_(sums[:, -1].exp()[:, None, None]).baddbmm_((k * left).transpose(1, 2), written)
    return out.transpose(0, 1)
