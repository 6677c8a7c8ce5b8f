"""Layers with embeddings of their own, or with keys and values of earlier ones: see `model/mixing/carried.py`."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.layers.attention import Step
from potluck.engine.layers.blocks import DecoderLayer, Mixer, normed
from potluck.engine.layers.linear import Linear
from potluck.engine.layers.mlp import Mlp, MoE
from potluck.engine.layers.norms import RmsNorm
from potluck.engine.layers.parallel import ParallelMoE
from potluck.engine.layers.row_table import RowTable
from potluck.model.families.facts import Activation, LayerNorms
from potluck.model.layers import LayerSpec
from potluck.model.mixing.carried import LayerInputSpec
from potluck.model.mixing.mixers import AttentionSpec
from potluck.model.powers import power


class InputTable:
    """The table of all layers, and the norm that they have in common. A step's rows are read once for a stage's layers."""

    __slots__ = ("_ids", "_rows", "norm", "table")

    def __init__(self, table: RowTable, norm: RmsNorm) -> None:
        self.table, self.norm = table, norm
        self._ids: list[Tensor | None] = []
        self._rows = torch.empty(0, 0)

    def row(self, token: int) -> Tensor:
        """The row of one token, (n · layers,), f32."""
        return self.table.read_one(token)

    def rows(self, steps: Sequence[Step]) -> Tensor:
        """The rows of the tokens of these steps, (T, n · layers), f32."""
        ids = [step.ids for step in steps]
        known = len(ids) == len(self._ids)
        if not known or any(a is not b for a, b in zip(ids, self._ids, strict=True)):
            wanted = torch.cat([one.cpu().long() for one in ids if one is not None])
            self._rows, self._ids = self.table.read(wanted), ids
        return self._rows


class LayerInputs:
    """The embeddings of one layer."""

    __slots__ = ("_apply", "_is_first", "context", "gate", "norm", "output", "shared", "spec")

    def __init__(
        self,
        spec: LayerInputSpec,
        shared: InputTable,
        *,
        context: Linear,
        gate: Linear,
        output: Linear,
        norm: RmsNorm,
        apply: Callable[[Tensor, Activation], Tensor],
        is_first: bool,
    ) -> None:
        """Put the parts together.

        Args:
            spec: its specification.
            shared: what all layers have in common.
            context: P_l.
            gate: A.
            output: B.
            norm: the last one.
            apply: computes `gates.gate`.
            is_first: whether what all have in common is counted here.
        """
        self.spec, self.shared, self.norm, self._apply = spec, shared, norm, apply
        self.context, self.gate, self.output, self._is_first = context, gate, output, is_first

    def __call__(self, hidden: Tensor, embedding: Tensor, steps: Sequence[Step]) -> Tensor:
        """Hidden states (T, D) and the tokens' first embeddings (T, D) → what is added, (T, D)."""
        spec = self.spec
        own = slice(spec.layer * spec.size, (spec.layer + 1) * spec.size)
        rows = self.shared.rows(steps)[:, own].to(hidden.device)
        context = self.context(embedding).float() * power(spec.hidden_size, -0.5)
        given = self.shared.norm(context).add_(rows * power(spec.size, 0.5)).mul_(power(2.0, -0.5))
        both = torch.cat([self.gate(hidden).float(), given], 1)
        return self.norm(self.output(self._apply(both, spec.activation).to(hidden.dtype)))

    @property
    def matrices(self) -> Sequence[Linear]:
        return self.context, self.gate, self.output

    @property
    def nbytes(self) -> int:
        shared = self.shared.norm.nbytes if self._is_first else 0
        return shared + self.norm.nbytes + sum(one.nbytes for one in self.matrices)


class CarriedLayer(DecoderLayer):
    """A layer of hidden states with more numbers behind them."""

    __slots__ = ("inputs",)

    def __init__(
        self,
        spec: LayerSpec,
        mixer: Mixer | None,
        mlp: Mlp | MoE | ParallelMoE | None,
        norms: LayerNorms[RmsNorm],
        scale: Tensor | None,
        inputs: LayerInputs | None,
    ) -> None:
        super().__init__(spec, mixer, mlp, norms, scale)
        self.inputs = inputs

    def forward_all(self, x: Tensor, caches: Sequence[LayerCache], steps: Sequence[Step]) -> Tensor:
        """(T, width) → (T, width): see `Carried`."""
        carried, size, mixer = self.spec.carried, self.spec.hidden_size, self.spec.mixer
        assert carried is not None
        assert isinstance(mixer, AttentionSpec)
        assert self.mixer is not None
        assert self.mlp is not None
        hidden, norms = x[:, :size], self.norms
        taken = None if mixer.takes is None else x[:, carried.place(mixer.takes)]
        mixed = self._mixed(self.mixer, normed(hidden, norms.before_mixer), caches, steps, taken)
        hidden = self._add(hidden, normed(mixed, norms.after_mixer))
        fed = self._fed_forward(self.mlp, normed(hidden, norms.before_mlp), steps)
        hidden = self._add(hidden, normed(fed, norms.after_mlp))
        if self.inputs is not None:
            embedding = x[:, size : size + carried.embedding_size]
            hidden = self._add(hidden, self.inputs(hidden, embedding, steps))
        if self.scale is not None:
            hidden.mul_(self.scale)
        x = torch.cat([hidden, x[:, size:]], 1)
        if mixer.gives is not None:
            x[:, carried.place(mixer.gives)] = _cached(caches, steps, x.dtype)
        return x

    @property
    def around(self) -> Sequence[Linear]:
        return () if self.inputs is None else self.inputs.matrices

    @property
    def nbytes(self) -> int:
        return super().nbytes + (0 if self.inputs is None else self.inputs.nbytes)


class FirstNorm:
    """The final norm of hidden states with more numbers behind them."""

    __slots__ = ("_size", "norm")

    def __init__(self, norm: RmsNorm, size: int) -> None:
        self.norm, self._size = norm, size

    def __call__(self, x: Tensor) -> Tensor:
        return self.norm(x[:, : self._size].contiguous())

    @property
    def nbytes(self) -> int:
        return self.norm.nbytes


def _cached(caches: Sequence[LayerCache], steps: Sequence[Step], dtype: torch.dtype) -> Tensor:
    """The keys, then the values, that a layer has cached of these steps' tokens: (T, 2 Hkv·K)."""
    parts: list[Tensor] = []
    for cache, step in zip(caches, steps, strict=True):
        both = cache.read_all(step.position, step.tokens, dtype)
        parts.append(torch.cat([one[0].transpose(0, 1).flatten(1) for one in both], 1))
    return torch.cat(parts)
