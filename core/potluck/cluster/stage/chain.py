"""The connections that steps come and go by: from the stage before, to the next one or the driver.

Messages are handled on the computing thread, in the order in which they came, and what follows from
one leaves from there, before the next is looked at.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from potluck.cluster.loss import computer_lost
from potluck.cluster.stage.compute_thread import ComputeThread
from potluck.cluster.stage.steps import SessionMessage, apply, ends_prompt, is_long
from potluck.engine.device import is_lost
from potluck.engine.measuring import StageMeter
from potluck.engine.memory import release_prompt
from potluck.engine.stage import Stage
from potluck.errors import (
    EngineError,
    NeedReplayError,
    OutOfMemoryError,
    PeerLostError,
    PotluckError,
)
from potluck.ids import HomeId, NodeId
from potluck.net.step_link import StepLink
from potluck.wire.measuring_messages import StageTimes
from potluck.wire.messages import (
    Attach,
    CloseSession,
    Forward,
    Message,
    OpenSession,
    Result,
    StepFailed,
    TrimSession,
)

logger = logging.getLogger(__name__)

HELD_RESULTS = 64  # that came before their driver; one prompt's chunks under way are fewer


@dataclass(slots=True, eq=False)
class LoadedStage:
    """The stage in force, and where what it computes goes."""

    home: HomeId
    epoch: int
    previous: NodeId | None  # whose hidden states it takes; None: the first stage
    stage: Stage
    next_link: StepLink | None  # None: the last stage, which answers the driver
    driver: StepLink | None = None
    held: "deque[Result]" = field(default_factory=lambda: deque(maxlen=HELD_RESULTS))
    unfinished: str | None = None  # session with a prompt of which more chunks come
    meter: StageMeter | None = None  # once it was measured

    def measure(self, position: int) -> StageTimes:
        """Time the parts of one token. On the computing thread."""
        if self.meter is None or self.meter.position != position:
            self.meter = None  # its caches go before others are made
            self.meter = StageMeter(self.stage, position)
        return self.meter.round()

    def awaits(self, message: SessionMessage) -> bool:
        """Whether it is the rest of a prompt, though it be a single token."""
        return isinstance(message, Forward) and message.session == self.unfinished

    def takes_steps_of(self, link: StepLink) -> bool:
        """Whether the peer is the one before this stage: another computer, or the driver itself."""
        if link.home != self.home:
            return False
        if self.previous is None:
            return link.peer_role == "master"
        return link.peer.node_id == self.previous

    @property
    def output(self) -> StepLink | None:
        return self.driver if self.next_link is None else self.next_link


class StageChain:
    """The stage in force between its neighbours.

    Args:
        name: of this computer.
        tell: says to the node that a step could not be done; called in the event loop.
    """

    def __init__(
        self, name: str, compute: ComputeThread, tell: Callable[[StepFailed], None]
    ) -> None:
        self.loaded: LoadedStage | None = None
        self._name = name
        self._compute = compute
        self._tell = tell
        self._loop = asyncio.get_running_loop()

    async def serve_link(self, link: StepLink) -> None:
        """Take steps from the stage before, or from the driver, until the connection ends."""
        if link.purpose != "activations":
            return
        link.deliver_to(partial(self._receive, link))
        await link.wait_closed()
        logger.info("activation link ended peer=%s: %s", link.peer.name, link.error)

    def _receive(self, link: StepLink, message: Message, payload: memoryview) -> None:
        loaded = self.loaded
        if link.is_revoked:
            return
        match message:
            case Attach():
                is_master = link.peer_role == "master"
                if (
                    loaded
                    and is_master
                    and (link.home, message.epoch) == (loaded.home, loaded.epoch)
                ):
                    loaded.driver = link
                    for _ in range(len(loaded.held)):  # one that cannot be sent is held again
                        self._send_on(loaded, loaded.held.popleft(), memoryview(b""))
            case OpenSession() | Forward() | TrimSession() | CloseSession():
                if loaded is None:
                    self._fail(message, computer_lost(self._name, "gave its part back"))
                elif not loaded.takes_steps_of(link):
                    logger.warning("steps of %s are not for this stage", link.peer.name)
                elif is_long(message) or loaded.awaits(message):
                    loaded.unfinished = None if ends_prompt(message) else message.session
                    with self._compute.relieved():
                        self._step(loaded, message, payload)
                        if loaded.unfinished is None:  # while others compute what follows from it
                            release_prompt(loaded.stage.weights.device)
                else:
                    self._step(loaded, message, payload)
                    if isinstance(message, Forward):
                        self._compute.expect_token()
            case _:
                logger.debug("activation link ignores op=%s", type(message).__name__)

    def _step(self, loaded: LoadedStage, message: SessionMessage, payload: memoryview) -> None:
        """Do it, and hand on what follows from it."""
        try:
            sent, data = apply(loaded.stage, message, payload)
            self._send_on(loaded, sent, data)
        except PotluckError as error:
            self._fail(message, error)
        except Exception as error:  # the boundary to torch: one step failed, the stage lives on
            logger.exception("step failed")
            self._fail(message, EngineError(f"{self._name} failed in a step: {error}"))
            if is_lost(loaded.stage.weights.device):
                self._compute.give_up()

    def _send_on(self, loaded: LoadedStage, message: Message, payload: memoryview) -> None:
        link = loaded.output
        if isinstance(message, SessionMessage) and loaded.next_link is None:
            return  # the chain ends here
        if link is None or (loaded.next_link is None and link.is_closed):
            # The driver's connection to here may be slower than its first step.
            assert isinstance(message, Result)
            loaded.held.append(message)
            return
        try:
            link.send_nowait(message, payload)
        except PeerLostError:
            self._fail(message, computer_lost(link.peer.name))

    def _fail(self, message: Message, error: PotluckError) -> None:
        if not isinstance(message, Forward | Result):
            return
        position = error.data.get("position") if isinstance(error, NeedReplayError) else None
        # The stage does not know which computer it is on, and who reads this needs to.
        who = f"{self._name}: " if isinstance(error, OutOfMemoryError) else ""
        self._loop.call_soon_threadsafe(
            self._tell,
            StepFailed(
                epoch=message.epoch,
                session=message.session,
                step=message.step,
                kind=error.code,
                message=who + error.message,
                position=position if isinstance(position, int) else None,
            ),
        )

    async def watch(self, loaded: LoadedStage, link: StepLink) -> None:
        """The next stage sends nothing back; reading is how the end of the link is noticed."""
        link.deliver_to(_ignore)
        await link.wait_closed()
        if self.loaded is loaded:
            logger.warning("next stage is lost peer=%s", link.peer.name)
            lost = computer_lost(link.peer.name)
            self._tell(
                StepFailed(
                    epoch=loaded.epoch,
                    session="-",
                    step=0,
                    kind=lost.code,
                    message=lost.message,
                )
            )


def _ignore(message: Message, payload: memoryview) -> None:
    logger.debug("the next stage says op=%s", type(message).__name__)
