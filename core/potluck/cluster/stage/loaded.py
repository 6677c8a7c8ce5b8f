"""The stage in force: what it computes with, whom it hears, and where its results go."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from potluck.cluster.stage.agreement import Agreement
from potluck.cluster.stage.ranks import Links
from potluck.cluster.stage.scheduler import PeerLink
from potluck.cluster.stage.transfers import CacheTarget, StageBefore, Transfers
from potluck.engine.measuring import StageMeter
from potluck.engine.stage import Stage
from potluck.ids import HomeId, NodeId
from potluck.net.step_link import StepLink
from potluck.wire.activation_messages import Result
from potluck.wire.measuring_messages import StageTimes

_HELD_RESULTS = 64  # more than there are chunks of one prompt under way


@dataclass(slots=True, eq=False)
class LoadedStage:
    """The stage in force, and the links that it sends its results to."""

    home: HomeId
    epoch: int
    previous: NodeId | None  # node of the stage before; None: this is the first stage
    stage: Stage
    next_link: StepLink | None  # None: the last stage, which answers the driver
    driver: PeerLink | None = (
        None  # who hears of results; of another rank, the one before it is rank 0
    )
    # Results that wait until the driver attaches; the oldest are lost if there are too many.
    held: "deque[Result]" = field(default_factory=lambda: deque(maxlen=_HELD_RESULTS))
    meter: StageMeter | None = None  # made by the first measurement
    rank: int = 0  # of its group
    rank_links: Links | None = None  # with the other ranks; None: there is no group
    cache_targets: Sequence[CacheTarget] = ()  # where caches go of prompts read for others
    before: StageBefore | None = None  # whose conversations it takes over
    key: str | None = None  # of the plan: who knows it may fetch caches
    # Set when it comes into force.
    transfers: Transfers = field(init=False)
    agreement: Agreement = field(init=False)

    def take_over_from(self, before: StageBefore) -> None:
        """Take conversations over from stages of a plan that ends. Call it on the computing thread, in force."""
        self.transfers.take_over_from(before)
        self.before = before

    def end_sums(self) -> None:
        """End the connections with the other ranks: the computing thread may wait for one that is lost. It is no loss."""
        links, self.rank_links = self.rank_links, None
        if links is not None:
            links.close()

    def close(self) -> None:
        """End the connections that were made for this stage."""
        for link in self.links:
            link.close()
        if self.before is not None:
            self.before.close()
        self.end_sums()

    def measure(self, position: int) -> StageTimes:
        """Time the parts of one token. Call it on the computing thread."""
        if self.meter is None or self.meter.position != position:
            self.meter = None  # free its caches before new ones are made
            self.meter = StageMeter(self.stage, position)
        return self.meter.round()

    def takes_steps_of(self, link: PeerLink) -> bool:
        """Whether the peer is the one before this stage: another stage, or the driver."""
        if link.home != self.home:
            return False
        if self.previous is None:
            return link.peer_role == "master"
        return link.peer.node_id == self.previous

    def sends_on(self, link: StepLink) -> bool:
        """Whether this stage sends what it computes, or is to be computed, on this link."""
        return link is self.next_link or link in self.followers

    @property
    def followers(self) -> Sequence[StepLink]:
        """The connections of rank 0 with the other ranks, which do what it does."""
        return self.rank_links.steps if self.rank_links is not None else ()

    def drop(self, session: str) -> None:
        """End what is under way of a session's caches, which goes on in another way."""
        self.transfers.drop(session)
        self.agreement.drop(session)

    def hears(self, link: StepLink) -> bool:
        """Whether the other end of a connection that this stage made says something: of caches that move, or of those it has."""
        return link in self.cache_links or link in self.followers

    @property
    def links(self) -> Sequence[StepLink]:
        """The connections that it made to other stages."""
        following = () if self.next_link is None else (self.next_link,)
        return (*following, *(target.link for target in self.cache_targets))

    @property
    def cache_links(self) -> Sequence[StepLink]:
        """Those of them, and of those to the stages before, on which caches are moved."""
        sources = () if self.before is None else self.before.sources
        return [each.link for each in (*self.cache_targets, *sources)]

    @property
    def output(self) -> PeerLink | None:
        return self.driver if self.next_link is None else self.next_link
