"""Which layers each computer should have on its disk, so that a loss sends nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from potluck.ids import NodeId
from potluck.plan.stages import StagePlan


@dataclass(frozen=True, slots=True)
class Share:
    """Parts of a model."""

    layers: frozenset[int] = frozenset()
    embedding: bool = False
    head: bool = False

    def __or__(self, other: "Share") -> "Share":
        return Share(
            self.layers | other.layers,
            self.embedding or other.embedding,
            self.head or other.head,
        )

    def __sub__(self, other: "Share") -> "Share":
        return Share(
            self.layers - other.layers,
            self.embedding and not other.embedding,
            self.head and not other.head,
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
        for node, share in _shares(stages).items():
            if missing := share - held.get(node, Share()):
                lacking[node] = lacking.get(node, Share()) | missing
    return lacking


def _shares(stages: Iterable[StagePlan]) -> dict[NodeId, Share]:
    """What each computer of a plan has on all its devices."""
    shares: dict[NodeId, Share] = {}
    for stage in stages:
        share = Share(frozenset(stage.layers), stage.embedding, stage.head)
        shares[stage.node] = shares.get(stage.node, Share()) | share
    return shares
