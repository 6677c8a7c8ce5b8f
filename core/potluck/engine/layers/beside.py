"""Attention beside a state space in one layer, of one session (Falcon-H1)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.state_cache import RowsAndState
from potluck.engine.layers.attention import Attention, Step
from potluck.engine.layers.linear import Linear
from potluck.engine.layers.mamba import Mamba
from potluck.model.mixing.mixers import BesideSpec


class Beside:
    """Both mixers read the same input; what they give is added."""

    __slots__ = ("_dtype", "attention", "mamba", "spec")

    def __init__(
        self, spec: BesideSpec, attention: Attention, mamba: Mamba, *, dtype: torch.dtype
    ) -> None:
        """Make them of hidden states of this dtype."""
        self.spec, self.attention, self.mamba, self._dtype = spec, attention, mamba, dtype

    @property
    def matrices(self) -> Sequence[Linear]:
        return *self.attention.matrices, *self.mamba.matrices

    @property
    def nbytes(self) -> int:
        return self.attention.nbytes + self.mamba.nbytes

    def project(self, x: Tensor) -> Tensor:
        """Normed (T, D) → the rows of attention, then those of the state space, (T, …), f32."""
        return torch.cat([self.attention.project(x).float(), self.mamba.project(x)], 1)

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """What `project` gave → what both give before their last matrices, (T, …)."""
        assert isinstance(cache, RowsAndState)
        sizes = sum(self.spec.attention.qkv.rows), self.spec.mamba.rows
        ours, theirs = rows.split(sizes, 1)
        mixed = self.attention.mix(ours.to(self._dtype).contiguous(), cache, step)
        return torch.cat([mixed, self.mamba.mix(theirs, cache.state, step)], 1)

    @property
    def output(self) -> Callable[[Tensor], Tensor]:
        return self._output

    def _output(self, mixed: Tensor) -> Tensor:
        """What `mix` gave of all sessions → (T, D)."""
        sizes = self.spec.attention.q_size, self.spec.mamba.values_size
        ours, theirs = mixed.split(sizes, 1)
        y = self.attention.output(ours.contiguous())
        return y.add_(self.mamba.output(theirs.contiguous()))
