"""A plan: the stages of a model, in the order in which a token visits them."""

from collections.abc import Mapping
from dataclasses import dataclass

from potluck.ids import NodeId
from potluck.plan.cost import HopCost


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """A contiguous range of layers on one device."""

    node: NodeId
    name: str
    device: str
    layers: range
    embedding: bool
    head: bool
    predicted_ms: float  # of one token, with the head if this stage has it
    head_ms: float  # the head's part of `predicted_ms`; 0 if this stage has no head
    prefill_ms: float  # of one whole prefill chunk, without the head
    # How much longer a token takes in these layers for each byte that it reads of the cache of one, for each kind;
    # `DeviceCost` has more of it.
    token_read_ms: tuple[float, ...] = ()
    chunk_read_ms: tuple[float, ...] = ()
    memory: int  # bytes of weights and KV cache
    rank: int = 0  # in its group, whose ranks follow each other and have the same layers
    tower: bool = False  # it has the vision tower, and no layers
    shares: tuple[int, ...] = (1,)  # how much of each layer every rank has; one: there is no group

    @property
    def is_ranked(self) -> bool:
        """Whether it is a rank of a group, and has a share of its layers."""
        return len(self.shares) > 1

    @property
    def part(self) -> float:
        """How much of each layer it has, of 1."""
        return self.shares[self.rank] / sum(self.shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The stages in the order in which a token visits them, and their predicted speed."""

    stages: tuple[StagePlan, ...]
    hops: tuple[HopCost, ...]  # master to first, between the stages, last to master
    token_ms: float  # time of one user's next token
    predicted_tokens_per_s: float  # for one user
    users: int  # for how many at once it was made
    users_tokens_per_s: float  # of all of them together
    alone: Mapping[NodeId, float | None]  # tokens per second on one computer; None: does not fit
    lower_bound_ms: float  # no plan for these computers is faster for one token
    optimal: bool  # proven to be the fastest; may be False with layers by hand or many devices
    explanation: str  # lines of text for people

    @property
    def pipeline(self) -> tuple[StagePlan, ...]:
        """The stages that a token visits one after the other: of each group, its rank 0."""
        return tuple(stage for stage in self.stages if stage.rank == 0)
