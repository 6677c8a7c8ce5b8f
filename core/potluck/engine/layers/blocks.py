"""A decoder layer in torch, and runs of layers that one token goes through.

A layer is a mixer and an MLP, each with norms around it and a residual beside it. Its `LayerSpec`
says what it is made of; the parts are chosen when it is built (`builder.py`). The input of a layer
belongs to the caller and is never changed. A layer may update in place only tensors that it made
itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.layers.attention import Step
from potluck.engine.layers.linear import Linear
from potluck.engine.layers.mlp import Mlp, MoE
from potluck.engine.layers.norms import RmsNorm
from potluck.engine.layers.parallel import ParallelMoE
from potluck.engine.rank_sums.ranks import summed
from potluck.model.families.facts import LayerNorms
from potluck.model.layers import LayerSpec


class Mixer(Protocol):
    """What computes a layer's mixer: attention, so far.

    Matrices are multiplied with all tokens of a forward pass at once, whichever sessions they are of.
    What is between the matrices is computed for each session by itself.
    """

    @property
    def matrices(self) -> Sequence[Linear]:
        """All that it multiplies with, in the order of use."""
        ...

    @property
    def nbytes(self) -> int: ...

    def project(self, x: Tensor) -> Tensor:
        """Normed (T, D) of all sessions → (T, …)."""
        ...

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """One session's rows of `project` → (T, …). The cache gets what it keeps of the tokens."""
        ...

    @property
    def output(self) -> Callable[[Tensor], Tensor]:
        """What `mix` gave of all sessions → (T, D)."""
        ...


class DecoderLayer:
    """The layer of every family. It has norms, a mixer and an MLP where the specification has them."""

    __slots__ = ("_multiplier", "mixer", "mlp", "norms", "scale", "spec")

    def __init__(
        self,
        spec: LayerSpec,
        mixer: Mixer | None,
        mlp: Mlp | MoE | ParallelMoE | None,
        norms: LayerNorms[RmsNorm],
        scale: Tensor | None = None,
    ) -> None:
        """Put the parts together; `scale` (1,), f32, multiplies the result."""
        self.spec, self.mixer, self.mlp, self.norms = spec, mixer, mlp, norms
        self.scale = scale
        self._multiplier = spec.residual_multiplier

    def forward(self, x: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """Run the tokens of one session, (T, D), through the layer; the cache gets what is kept of them."""
        return self.forward_all(x, (cache,), (step,))

    def forward_all(self, x: Tensor, caches: Sequence[LayerCache], steps: Sequence[Step]) -> Tensor:
        """Run the tokens of several sessions, one after the other in the rows of (T, D).

        Each session has a cache of this layer and a step, which says how many of the rows are its own.
        """
        norms, read = self.norms, x
        if self.mixer is not None:
            read = normed(x, norms.before_mixer)
            mixed = self._mixed(self.mixer, read, caches, steps)
            x = self._add(x, normed(mixed, norms.after_mixer))
        if self.mlp is not None:
            if not self.spec.is_side_by_side:
                read = normed(x, norms.before_mlp)
            x = self._add(x, normed(self._fed_forward(self.mlp, read, steps), norms.after_mlp))
        return x if self.scale is None else x.mul_(self.scale)

    def _mixed(
        self,
        mixer: Mixer,
        x: Tensor,
        caches: Sequence[LayerCache],
        steps: Sequence[Step],
        taken: Tensor | None = None,
    ) -> Tensor:
        """What the mixer makes of (T, D), of all ranks together; `taken` belongs behind what it makes of its matrices."""
        rows = mixer.project(x)
        rows = rows if taken is None else torch.cat([rows, taken], 1)
        mixed = mixer.output(_mix(mixer, rows, caches, steps))
        return summed(mixed, steps[0].exchange) if self.spec.sums_mixer else mixed

    def _fed_forward(
        self, mlp: Mlp | MoE | ParallelMoE, x: Tensor, steps: Sequence[Step]
    ) -> Tensor:
        """What the feed-forward makes of (T, D), of all ranks together."""
        exchange = steps[0].exchange if self.spec.sums_feed_forward else None
        if isinstance(mlp, ParallelMoE):  # which has norms after the sums
            return mlp(x, exchange)
        if isinstance(mlp, MoE) and self.spec.needs_ids:
            ids = [step.ids for step in steps if step.ids is not None]
            return summed(mlp(x, ids=torch.cat(ids)), exchange)
        return summed(mlp(x), exchange)

    @property
    def mixer_matrices(self) -> Sequence[Linear]:
        """All that the mixer multiplies with, in the order of use; none without a mixer."""
        return () if self.mixer is None else self.mixer.matrices

    @property
    def around(self) -> Sequence[Linear]:
        """The matrices beside those of mixer and MLP."""
        return ()

    @property
    def nbytes(self) -> int:
        parts = (self.mixer, self.mlp, self.scale, *self.norms.present)
        return sum(part.nbytes for part in parts if part is not None)

    def _add(self, x: Tensor, added: Tensor) -> Tensor:
        """`added` is this layer's own memory, `x` may be the caller's."""
        if self._multiplier != 1.0:  # two steps: in one, some processors round once, and some twice
            added = added.mul_(self._multiplier)
        return added.add_(x)


class Run(ABC):
    """Consecutive layers of a stage, as one token goes through them in one call."""

    @abstractmethod
    def __call__(self, x: Tensor, caches: Sequence[LayerCache], step: Step) -> Tensor:
        """(1, D) → (1, D). `caches` has those of all layers of the stage; `x` is not changed."""


class LayerRun(Run):
    """One layer after the other, in torch."""

    def __init__(self, first: int, blocks: Sequence[DecoderLayer]) -> None:
        self._first, self._blocks = first, tuple(blocks)

    def __call__(self, x: Tensor, caches: Sequence[LayerCache], step: Step) -> Tensor:
        for block, cache in zip(self._blocks, caches[self._first :], strict=False):
            x = block.forward(x, cache, step)
        return x


def _mix(mixer: Mixer, rows: Tensor, caches: Sequence[LayerCache], steps: Sequence[Step]) -> Tensor:
    if len(steps) == 1:
        return mixer.mix(rows, caches[0], steps[0])
    parts = rows.split([step.tokens for step in steps])
    return torch.cat([mixer.mix(*each) for each in zip(parts, caches, steps, strict=True)])


def normed(x: Tensor, norm: RmsNorm | None) -> Tensor:
    """The norm of hidden states; without one, themselves."""
    return x if norm is None else norm(x)
