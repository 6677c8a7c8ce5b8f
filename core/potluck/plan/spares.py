"""Which layers each computer should have on its disk, so that a loss sends nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias

from potluck.ids import NodeId
from potluck.plan.stages import StagePlan

Part: TypeAlias = tuple[int, tuple[int, ...]]
"""A rank, and how much of each layer every rank of its group has."""


@dataclass(frozen=True, slots=True)
class Share:
    """Parts of a model. Of its layers it is what one rank of a group has, unless `part` is None."""

    layers: frozenset[int] = frozenset()
    embedding: bool = False
    head: bool = False
    part: Part | None = None

    def __or__(self, other: "Share") -> "Share":
        """What has both. Layers of which each has another part are whole in it: each part can be cut out of these."""
        parts = {share.part for share in (self, other) if share.layers}
        return Share(
            self.layers | other.layers,
            self.embedding or other.embedding,
            self.head or other.head,
            parts.pop() if len(parts) == 1 else None,
        )

    def __sub__(self, other: "Share") -> "Share":
        """What of this is lacking for who has the other."""
        has_layers = other.part in (None, self.part)
        return replace(
            self,
            layers=self.layers - other.layers if has_layers else self.layers,
            embedding=self.embedding and not other.embedding,
            head=self.head and not other.head,
        )

    def __bool__(self) -> bool:
        return bool(self.layers) or self.embedding or self.head


def spare_shares(
    plan: Iterable[StagePlan], after_losses: Iterable[Sequence[StagePlan]]
) -> dict[NodeId, Share]:
    """What each computer lacks for the plans that would follow the loss of another one.

    Args:
        plan: the stages in force.
        after_losses: for each computer that may be lost, the stages that there would be then.

    Returns:
        What a computer has no stage with now, and would have one with after one of the losses.
        Computers that lack nothing are left out.
    """
    held = _shares(plan)
    lacking: dict[NodeId, Share] = {}
    for stages in after_losses:
        for node, shares in _shares(stages).items():
            needed = reduce(Share.__or__, shares)
            for own in held.get(node, ()):
                needed -= own
            if needed:
                lacking[node] = lacking.get(node, Share()) | needed
    return lacking


def _shares(stages: Iterable[StagePlan]) -> dict[NodeId, list[Share]]:
    """What each device of each computer of a plan has."""
    shares: dict[NodeId, list[Share]] = {}
    for stage in stages:
        part = (stage.rank, stage.shares) if stage.is_ranked else None
        share = Share(frozenset(stage.layers), stage.embedding, stage.head, part)
        shares.setdefault(stage.node, []).append(share)
    return shares
