"""The connections of a stage: steps come from the stage before, and go to the next or the driver.

Messages that arrive wait in the scheduler. Its groups are handled on the computing thread, which
sends the result of each message before it looks at the next one.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from potluck.cluster.loss import computer_lost
from potluck.cluster.stage.agreement import Agreement, Asked
from potluck.cluster.stage.following import follow
from potluck.cluster.stage.giving import say
from potluck.cluster.stage.joining import Lobby
from potluck.cluster.stage.loaded import LoadedStage
from potluck.cluster.stage.pictures import PictureMessage, read_for, show
from potluck.cluster.stage.ranks import Ranks
from potluck.cluster.stage.remains import Remains
from potluck.cluster.stage.scheduler import Aside, Group, PeerLink, Scheduler, Waiting
from potluck.cluster.stage.steps import (
    Answer,
    SessionMessage,
    TransferMessage,
    answer_to,
    apply,
    forward,
    restore,
    transfer,
)
from potluck.cluster.stage.transfers import Transfers
from potluck.engine.device import is_lost
from potluck.engine.memory import release_prompt
from potluck.errors import (
    EngineError,
    NeedReplayError,
    OutOfMemoryError,
    PeerLostError,
    PotluckError,
)
from potluck.net.step_link import StepLink
from potluck.wire.activation_messages import (
    Attach,
    CloseSession,
    Forward,
    KeepSession,
    OpenSession,
    RestoreSession,
    Result,
    TrimSession,
)
from potluck.wire.cache_messages import (
    CacheGivenUp,
    CacheReceived,
    CacheRows,
    CacheSent,
    ExpectCache,
    FetchCache,
    ForgetBefore,
    RankHas,
    SendCache,
    TakeCache,
)
from potluck.wire.messages import Message, StepFailed
from potluck.wire.picture_messages import GiveRows, ReadPicture, ShowPicture

logger = logging.getLogger(__name__)


class StageChain:
    """The stage in force between its neighbours. `loaded` is None while there is no stage.

    Attributes:
        remains: the sessions of the stage that was in force, if these are still of use; None: nothing is left.

    Args:
        name: of this computer.
        scheduler: messages that arrive are put into it.
        tell: reports to the node a step that could not be done; called in the event loop.
        device_lost: called when the device cannot compute any more.
        ranks: the group that the stage is a rank of.
        submit: has something short done on the computing thread.
    """

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        tell: Callable[[StepFailed], None],
        device_lost: Callable[[], object],
        ranks: Ranks | None = None,
        submit: Callable[[Callable[[], None]], None] = lambda job: job(),
    ) -> None:
        self.lobby = Lobby()
        self.ranks = ranks if ranks is not None else Ranks()
        self._loaded: LoadedStage | None = None
        self.remains: Remains | None = None
        self._submit = submit
        self._name = name
        self._scheduler = scheduler
        self._tell = tell
        self._device_lost = device_lost
        self._loop = asyncio.get_running_loop()

    @property
    def loaded(self) -> LoadedStage | None:
        """The stage in force."""
        return self._loaded

    @loaded.setter
    def loaded(self, loaded: LoadedStage | None) -> None:
        if loaded is not None:
            loaded.transfers = Transfers(
                loaded.stage,
                loaded.epoch,
                loaded.cache_targets,
                lambda message: loaded.agreement.own(message, message.position),
                loaded.before,
                loaded.key,
            )
            loaded.agreement = Agreement(tuple(loaded.followers), partial(self._agreed, loaded))
        self._loaded = loaded

    async def serve_link(self, link: StepLink) -> None:
        """Take steps from the stage before, the driver, or rank 0 of the group, until the connection ends."""
        if link.purpose == "ranks":
            await self.lobby.serve(link)
        if link.purpose != "activations":
            return
        link.deliver_to(partial(self._scheduler.put, link))
        await link.wait_closed()
        logger.info("activation link ended peer=%s: %s", link.peer.name, link.error)
        self._submit(partial(self._lost, link))

    # --- on the computing thread

    def run_group(self, group: Group) -> None:
        """Handle the messages of a group. Tokens of several sessions are computed together."""
        members = [waiting for waiting in group.members if not waiting.link.is_revoked]
        loaded = self.loaded
        is_aside = isinstance(group.members[0].message, Aside)
        if loaded is not None and loaded.rank > 0 and not is_aside:
            self._follow(loaded, members)
        elif loaded is not None and group.kind == "token" and len(members) > 1:
            self._step_together(loaded, members)
        else:
            for waiting in members:
                self._handle(waiting.link, waiting.message, waiting.payload)
        if group.ends_prompts and self.loaded is not None:  # the other stages compute meanwhile
            release_prompt(self.loaded.stage.weights.device)

    def _handle(self, link: PeerLink, message: Message, payload: memoryview) -> None:
        loaded = self.loaded
        match message:
            case Attach():
                if loaded is not None:
                    self._attach(loaded, link, message)
            case (
                OpenSession()
                | Forward()
                | TrimSession()
                | CloseSession()
                | KeepSession()
                | RestoreSession()
                | ShowPicture()
                | GiveRows()
                | ExpectCache()
                | SendCache()
                | TakeCache()
                | ForgetBefore()
            ):
                if loaded is None:
                    self._fail(message, computer_lost(self._name, "gave its part back"))
                elif not _is_taken(loaded, link):
                    return
                elif isinstance(message, RestoreSession):
                    self._restore(loaded, message)
                elif isinstance(message, PictureMessage):
                    self._show(loaded, message, payload)
                elif isinstance(message, TransferMessage):
                    self._transfer(loaded, message)
                else:
                    self._step(loaded, message, payload)
            case ReadPicture():
                error = read_for(self._name, loaded, link, message, payload)
                if error is not None and loaded is not None:
                    self._look_for_loss(loaded)
            case RankHas():
                if loaded is not None:
                    loaded.agreement.heard(link, message)
            case CacheRows() | CacheReceived() | CacheSent() | CacheGivenUp() | FetchCache():
                if loaded is not None and link.home == loaded.home:
                    loaded.transfers.receive(link, message, payload)
                elif self.remains is not None and link.home == self.remains.home:
                    self.remains.receive(link, message)
                elif isinstance(message, FetchCache):  # who waits for it need not wait long
                    _refuse(link, message)
            case _:
                logger.debug("activation link ignores op=%s", type(message).__name__)

    def _attach(self, loaded: LoadedStage, link: PeerLink, message: Attach) -> None:
        is_master = link.peer_role == "master"
        if not is_master or (link.home, message.epoch) != (loaded.home, loaded.epoch):
            return
        loaded.driver = link
        for _ in range(len(loaded.held)):  # a result that cannot be sent is held again
            self._send_on(loaded, loaded.held.popleft(), memoryview(b""))

    def _step(self, loaded: LoadedStage, message: SessionMessage, payload: memoryview) -> None:
        """Apply a message to the stage, and send on its result."""
        try:
            if not isinstance(message, Forward):  # a step is passed on when it is computed
                self.ranks.pass_on(message)
            if isinstance(message, OpenSession | TrimSession | CloseSession):
                loaded.drop(message.session)
            sent, data = apply(loaded.stage, message, payload)
            self._send_on(loaded, sent, data)
            loaded.transfers.go_on(message.session)
        except Exception as error:  # noqa: BLE001 - one step failed, the stage stays
            self._failed(loaded, message, error)

    def _show(self, loaded: LoadedStage, message: PictureMessage, payload: memoryview) -> None:
        """Have the tower read a picture, or take its rows. It is not sent on: no other stage sees it, but other ranks of this one."""
        try:
            self.ranks.pass_on(message, payload)
            show(loaded.stage, message, payload)
        except Exception as error:  # noqa: BLE001 - one picture failed, the stage stays
            self._failed(loaded, message, error)

    def _follow(self, loaded: LoadedStage, members: Sequence[Waiting]) -> None:
        """Do what rank 0 of the group does now. Only the other ranks have to know if it cannot be done."""
        try:
            follow(self.ranks, loaded, [one for one in members if _is_taken(loaded, one.link)])
        except PotluckError as error:
            logger.info("a step of the group was given up: %s", error)
        except Exception as error:  # the boundary to torch
            logger.exception("a step of the group failed here")
            del error
            self._look_for_loss(loaded)

    def _transfer(self, loaded: LoadedStage, message: TransferMessage) -> None:
        """Begin to send or to receive a session's cache, or wait for the end of that: on all ranks."""
        try:
            if (answer := transfer(loaded, message)) is not None:
                self._send_on(loaded, *answer)
            self.ranks.pass_on(message)
        except Exception as error:  # noqa: BLE001 - one step failed, the stage stays
            self._failed(loaded, message, error)

    def _agreed(self, loaded: LoadedStage, message: Asked, position: int) -> None:
        """Say how many tokens of a session are here now, on all ranks of a group."""
        if isinstance(message, RestoreSession):
            self._scheduler.release(message.session)
        if self.loaded is not loaded:
            return
        if loaded.rank:
            has = RankHas(
                epoch=loaded.epoch, session=message.session, step=message.step, position=position
            )
            if loaded.driver is not None:
                say(loaded.driver, has)
        else:
            self._send_on(loaded, *answer_to(loaded.stage, message, position))

    def _lost(self, link: PeerLink) -> None:
        if (loaded := self.loaded) is not None:
            loaded.transfers.lost(link)
        if self.remains is not None:
            self.remains.lost(link)

    def _restore(self, loaded: LoadedStage, message: RestoreSession) -> None:
        """Read what is on the disk, on all ranks. Meanwhile the other messages of this session wait."""
        self._scheduler.hold(message.session)
        loaded.agreement.ask(message)
        try:
            restore(loaded.stage, message, lambda position: loaded.agreement.own(message, position))
            self.ranks.pass_on(message)
        except PotluckError as error:
            loaded.agreement.drop(message.session)
            self._scheduler.release(message.session)
            self._failed(loaded, message, error)

    def _step_together(self, loaded: LoadedStage, members: Sequence[Waiting]) -> None:
        """Compute the tokens of several sessions at once, and send on the result of each."""
        messages = [
            (waiting.message, waiting.payload)
            for waiting in members
            if isinstance(waiting.message, Forward) and _is_taken(loaded, waiting.link)
        ]
        answers: Sequence[Answer | Exception]
        try:
            answers = forward(loaded.stage, messages)
        except Exception as error:  # noqa: BLE001 - these steps failed, the stage stays
            answers = [error] * len(messages)
        for (message, _), answer in zip(messages, answers, strict=True):
            if isinstance(answer, Exception):
                self._failed(loaded, message, answer)
            else:
                self._send_on(loaded, *answer)

    def _failed(self, loaded: LoadedStage, message: Message, error: Exception) -> None:
        """Report why a step failed. What is no error of Potluck came from torch."""
        if isinstance(error, PotluckError):
            self._fail(message, error)
            return
        logger.error("step failed", exc_info=error)
        self._fail(message, EngineError(f"{self._name} failed in a step; its engine.log says why."))
        self._look_for_loss(loaded)

    def _look_for_loss(self, loaded: LoadedStage) -> None:
        if is_lost(loaded.stage.weights.device):
            self._device_lost()

    def _send_on(self, loaded: LoadedStage, message: Message, payload: memoryview) -> None:
        link = loaded.output
        is_told = isinstance(message, SessionMessage | SendCache | ForgetBefore)
        if is_told and loaded.next_link is None:
            return  # the chain ends here
        if link is None or (loaded.next_link is None and link.is_closed):
            # The first step may arrive through the chain before the driver's connection to here.
            assert isinstance(message, Result)
            loaded.held.append(message)
            return
        try:
            link.send_nowait(message, payload)
        except PeerLostError:
            self._fail(message, computer_lost(link.peer.name))

    def _fail(self, message: Message, error: PotluckError) -> None:
        if not isinstance(
            message,
            Forward | RestoreSession | ExpectCache | TakeCache | Result | ShowPicture | GiveRows,
        ):
            return
        position = error.data.get("position") if isinstance(error, NeedReplayError) else None
        # The stage does not know its computer's name, but the reader of the error needs it.
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

    async def watch(self, link: StepLink) -> None:
        """Tell the node when the connection is lost to the next stage, another rank, or one for which this one reads.

        Only the last ones, other ranks, and stages of the plan before send something on this link. Those of others are read
        to notice their end. That of a stage before is no loss.
        """
        is_heard = self.loaded is not None and self.loaded.hears(link)
        link.deliver_to(partial(self._scheduler.put, link) if is_heard else _ignore)
        await link.wait_closed()
        self._submit(partial(self._lost, link))
        if (loaded := self.loaded) is not None and (loaded.sends_on(link) or link in loaded.links):
            kind = "stage" if link in loaded.links else "rank"
            logger.warning("a %s is lost peer=%s", kind, link.peer.name)
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


def _is_taken(loaded: LoadedStage, link: PeerLink) -> bool:
    is_taken = loaded.takes_steps_of(link)
    if not is_taken:
        logger.warning("steps of %s are not for this stage", link.peer.name)
    return is_taken


def _refuse(link: PeerLink, message: FetchCache) -> None:
    why = "Nothing is left of that plan here."
    given_up = CacheGivenUp(epoch=message.epoch, transfer=message.transfer, message=why)
    with suppress(PeerLostError):  # its transfers have ended with the connection
        link.send_nowait(given_up, memoryview(b""))


def _ignore(message: Message, payload: memoryview) -> None:
    logger.debug("a stage behind says op=%s", type(message).__name__)
