"""An MLP and a mixture of experts side by side, each between norms of its own (Gemma 4)."""

import torch
from torch import Tensor

from potluck.engine.layers.mlp import Mlp, MoE
from potluck.engine.layers.norms import RmsNorm
from potluck.engine.rank_sums.ranks import Exchange, summed
from potluck.model.families.facts import ParallelNorms


class ParallelMoE:
    """The sum of both. Router, experts and MLP all read the same hidden states, each by a norm of its own."""

    __slots__ = ("dense", "moe", "norms", "router_norm")

    def __init__(
        self, dense: Mlp, moe: MoE, norms: ParallelNorms[RmsNorm], router_norm: RmsNorm
    ) -> None:
        self.dense, self.moe, self.norms, self.router_norm = dense, moe, norms, router_norm

    def __call__(self, x: Tensor, exchange: Exchange | None = None) -> Tensor:
        """(T, D), not normed yet → (T, D). What ranks hold parts of is summed, both in one exchange."""
        norms = self.norms
        dense = self.dense(norms.before_dense(x))
        # In f32 up to the choice, which compares numbers that are close to each other.
        experts = self.moe(norms.before_moe(x), self.router_norm(x.float()))
        if exchange is not None:
            experts, dense = summed(torch.cat([experts, dense]), exchange).split(len(x))
        return norms.after_moe(experts).add_(norms.after_dense(dense))

    @property
    def nbytes(self) -> int:
        norms = (*self.norms.present, self.router_norm)
        return self.dense.nbytes + self.moe.nbytes + sum(norm.nbytes for norm in norms)
