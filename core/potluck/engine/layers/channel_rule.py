"""The delta rule with a decay for each channel in torch: one token after the other, or chunk by chunk.

All is f32. T tokens, H heads with K numbers in a key and V in a value; see `ChannelDeltaSpec`. Checked against
`transformers/models/kimi_linear/modeling_kimi_linear.py`.
"""

import torch
from torch import Tensor

_CHUNK = 16  # tokens: what each channel leaves between two of them is in memory, (H, 16, 16, K)


def channel_rule(
    q: Tensor, k: Tensor, v: Tensor, logs: Tensor, rates: Tensor, state: Tensor
) -> Tensor:
    """What the tokens read from the state, (T, H, V); the state (H, K, V) becomes that after them.

    Args:
        q: (T, H, K), scaled.
        k: (T, H, K), of length one.
        v: (T, H, V).
        logs: (T, H, K), of decays, at most 0.
        rates: (T, H), β.
        state: (H, K, V).
    """
    out = torch.empty_like(v)
    for first in range(0, len(q), _CHUNK):
        some = slice(first, first + _CHUNK)
        out[some] = _many(q[some], k[some], v[some], logs[some], rates[some], state)
    return out


def _many(q: Tensor, k: Tensor, v: Tensor, logs: Tensor, rates: Tensor, state: Tensor) -> Tensor:
    """What each token writes depends on what those before it wrote: a triangular system of equations."""
    q, k, v = (each.transpose(0, 1) for each in (q, k, v))  # (H, T, …)
    rates, sums = rates.t()[..., None], logs.transpose(0, 1).cumsum(1)  # (H, T, 1), (H, T, K)
    seen = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).tril()
    between = (sums[:, :, None] - sums[:, None]).masked_fill_(~seen[..., None], -torch.inf).exp_()
    since = sums.exp()
    system = rates * (k[:, :, None] * k[:, None] * between).sum(-1)
    wanted = rates * (v - (k * since) @ state)
    written = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    out = (q * since) @ state + (q[:, :, None] * k[:, None] * between).sum(-1) @ written
    left = (sums[:, -1:] - sums).exp()  # the decay from each token to the end
    state.mul_(since[:, -1, :, None]).baddbmm_((k * left).transpose(1, 2), written)
    return out.transpose(0, 1)
