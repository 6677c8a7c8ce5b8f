"""A state space layer (Mamba 2) of one session: convolution, recurrent state, gated norm."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.state_cache import StateCache
from potluck.engine.kernels.products.tensors import MambaTensors
from potluck.engine.layers.attention import Step
from potluck.engine.layers.recurrent import (
    RecurrentMixer,
    convolve,
    finish_convolution,
    finish_decays,
)
from potluck.model.mixing.mamba import MambaSpec

_CHUNK = 64  # tokens that are computed by products of matrices at a time


def empty_tensors(spec: MambaSpec, device: torch.device) -> tuple[MambaTensors, dict[str, Tensor]]:
    """Allocate the small tensors.

    Returns:
        The tensors, and by the name in files the memory to fill. Call `finish_tensors` after that.
    """

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, device=device)

    tensors = MambaTensors(
        convolution=empty(spec.channels, 1, spec.inputs),
        bias=torch.zeros(spec.channels, device=device),
        decays=empty(spec.heads),
        offsets=empty(spec.heads),
        skips=empty(spec.heads),
        norm=empty(spec.values_size) if spec.has_norm else None,
    )
    small = (
        tensors.convolution, tensors.offsets, tensors.decays, tensors.skips, tensors.norm, tensors.bias
    )  # fmt: skip
    present = (one for one in small if one is not None)
    return tensors, dict(zip(spec.small_tensors, present, strict=False))


def finish_tensors(tensors: MambaTensors, spec: MambaSpec) -> None:
    """Bring what was loaded into the form that is computed with."""
    finish_convolution(tensors)
    if not spec.has_whole_decays:
        finish_decays(tensors)


class Mamba(RecurrentMixer[MambaSpec, MambaTensors]):
    """The mixer in torch."""

    __slots__ = ()

    def project(self, x: Tensor) -> Tensor:
        """Normed (T, D) → the rows of `MambaSpec.input`, (T, …), f32."""
        return self.input(x).float()

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """What `project` gave → (T, H·P). The cache gets the state after these tokens."""
        assert isinstance(cache, StateCache)
        spec, tensors = self.spec, self.tensors
        before, state = cache.state(step.position)
        z, mixed, steps = rows.split([spec.values_size, spec.channels, spec.heads], 1)
        mixed = convolve(mixed, before, tensors.convolution, tensors.bias)
        x, b, c = mixed.split([spec.values_size, spec.shared_size, spec.shared_size], 1)
        x = x.reshape(len(x), spec.heads, spec.head_size)
        b, c = (self._of_heads(each) for each in (b, c))
        steps = F.softplus(steps + tensors.offsets)  # (T, H)
        out = scan(x * steps[..., None], b, c, tensors.decays * steps, state)
        out += x * tensors.skips[:, None]
        return self._gate(out.flatten(1), z).to(self._dtype)

    def _gate(self, out: Tensor, z: Tensor) -> Tensor:
        norm, gated = self.tensors.norm, out * F.silu(z)
        if norm is None:
            return gated
        groups = gated.unflatten(1, (self.spec.groups, -1))
        normed = torch.rms_norm(groups, groups.shape[-1:], None, self.spec.norm_eps)
        return normed.flatten(1).mul_(norm)

    def _of_heads(self, each: Tensor) -> Tensor:
        """(T, G·N) → (T, H, N): those of the group of each head."""
        spec = self.spec
        whole = each.reshape(len(each), spec.groups, spec.state_size)
        return whole.repeat_interleave(spec.heads // spec.groups, 1)


def scan(x: Tensor, b: Tensor, c: Tensor, log_decays: Tensor, state: Tensor) -> Tensor:
    """What the tokens read from the state, (T, H, P); the state (H, N, P) becomes that after them.

    Args:
        x: (T, H, P), times the steps.
        b: (T, H, N), what is written where.
        c: (T, H, N), what is read.
        log_decays: (T, H), at most 0.
        state: (H, N, P).
    """
    out = torch.empty_like(x)
    for first in range(0, len(x), _CHUNK):
        some = slice(first, first + _CHUNK)
        out[some] = _chunk(x[some], b[some], c[some], log_decays[some], state)
    return out


def _chunk(x: Tensor, b: Tensor, c: Tensor, log_decays: Tensor, state: Tensor) -> Tensor:
    """The same of a chunk, by products of matrices (https://arxiv.org/abs/2405.21060, section 6)."""
    x, b, c = (each.transpose(0, 1) for each in (x, b, c))  # (H, T, …)
    sums = log_decays.t().cumsum(-1)  # (H, T): the decay from the chunk's beginning to each token
    seen = torch.ones(len(sums[0]), len(sums[0]), dtype=torch.bool, device=x.device).tril()
    between = (sums[:, :, None] - sums[:, None]).masked_fill_(~seen, -torch.inf).exp_()  # (H, T, T)
    inside = (c @ b.transpose(1, 2)).mul_(between) @ x
    out = inside.add_((c * sums.exp()[..., None]) @ state)
    left = (sums[:, -1:] - sums).exp()[..., None]  # (H, T, 1): from each token to the chunk's end
    state.mul_(sums[:, -1].exp()[:, None, None]).add_((b * left).transpose(1, 2) @ x)
    return out.transpose(0, 1)
