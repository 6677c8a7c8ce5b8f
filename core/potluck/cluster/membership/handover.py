"""The main computer changes: one of the helpers takes over, and this computer and the others help it.

Homes stay whose they are. The new main computer gets a home of its own, and the computers of the old one join that
by tokens which the old main computer passes on to them: it vouches for them, as they have trusted it. At every moment
somebody is the main computer: the other one takes over before this one helps. A helper that is off, or too old,
follows when it can: until then this computer is still the master of its home, and asks for a token for it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from potluck.api.schema import Became, HandedOver, RoleRequest
from potluck.cluster.events import Events, Notice
from potluck.cluster.membership.calls import Addresses
from potluck.cluster.membership.membership import Members
from potluck.cluster.membership.named import homes_addresses
from potluck.cluster.membership.remote import RemoteComputer
from potluck.cluster.worker.lending import LendingSettings
from potluck.errors import (
    BusyError,
    NotAllowedError,
    NotFoundError,
    PairingError,
    PeerError,
    PotluckError,
    RemoteProtocolError,
    UsageError,
)
from potluck.files import write_atomically
from potluck.ids import HomeId, NodeId, short
from potluck.net.identity import Identity
from potluck.net.link import Link
from potluck.reasons import reason
from potluck.wire import proofs
from potluck.wire.handover_messages import (
    Follow,
    Followed,
    Invite,
    Invited,
    TakenOver,
    TakeOver,
)
from potluck.wire.messages import Address, Message
from potluck.wire.pairing import Member
from potluck.wire.token import PairingToken

logger = logging.getLogger(__name__)

LOOK_S: Final = 5.0  # between two looks at whether somebody can follow
AGAIN_S: Final = 60.0  # until a computer that could not follow is asked again: pairings are limited
STAYS: Final = "This computer stays the main computer."


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a change of the main computer."""

    became: Became
    other: NodeId  # the main computer before this one, or after it
    name: str  # of the other
    home: HomeId  # that was handed over
    is_news: bool = True  # nobody here has chosen its role since


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverParts:
    """What a handover uses of a node.

    Attributes:
        join: joins the home of a token.
        invite: makes a token of the own home, which is made if there is none.
        is_asked: whether prompts are answered, or wait.
        unload: frees the model on all computers.
    """

    identity: Identity
    membership: Members
    discovery: Addresses
    lending: LendingSettings
    events: Events
    join: Callable[[PairingToken, Sequence[Address]], Awaitable[Member]]
    invite: Callable[[], str]
    is_asked: Callable[[], bool]
    unload: Callable[[], Awaitable[None]]


class Handover:
    """Both sides of a change of the main computer; the file keeps it over restarts."""

    def __init__(self, parts: HandoverParts, file: Path) -> None:
        self._parts, self._file = parts, file
        self._record = _read(file)
        self._is_busy = False
        self._again: dict[NodeId, tuple[Link, float]] = {}  # who could not follow, until when
        self.left: set[HomeId] = set()  # homes that this computer leaves for that of another main

    @property
    def news(self) -> Became | None:
        """What this computer became, if nobody here has chosen its role since."""
        record = self._record
        return record.became if record is not None and record.is_news else None

    def chosen(self, *, worker: bool) -> None:
        """Note that the owner of this computer has chosen its role."""
        if (record := self._record) is None:
            return
        if worker == (record.became == "helper"):
            self._keep(msgspec.structs.replace(record, is_news=False))
        else:
            self._keep(None)

    # --- the main computer until now

    async def make_main(self, node_id: NodeId, *, stop_answers: bool) -> HandedOver:
        """Have a connected helper take over, and help it from then on.

        Raises:
            NotFoundError: it is not of this home, or not connected.
            BusyError: an answer is under way, or another change is.
            UsageError: this computer is no main computer any more.
            PeerError: it did not take over; the message says what holds now.
        """
        if (record := self._record) is not None and record.became == "helper":
            if record.other != node_id:
                raise UsageError(
                    f"{record.name} is the main computer now. Make another one the main computer there."
                )
            return await self._followed_by(record)
        computer = self._connected(node_id)
        if self._is_busy:
            raise BusyError("The main computer is being changed already. Wait a moment.")
        if self._parts.is_asked() and not stop_answers:
            raise BusyError("An answer is under way. Wait until it has ended, or have it stopped.")
        self._is_busy = True
        try:
            await self._parts.unload()
            record = await self._hand_over(computer)
        finally:
            self._is_busy = False
        return await self._followed_by(record)

    def _connected(self, node_id: NodeId) -> RemoteComputer:
        members = self._parts.membership
        for computer in members.connected():
            if computer.node_id == node_id:
                return computer
        known = members.records.get(node_id)
        if known is None:
            raise NotFoundError("That computer is not one of this home, so it cannot take over.")
        raise NotFoundError(
            f"{known.shown} is not connected, so it cannot take over. Start Potluck there, and try"
            f" again. {STAYS}"
        )

    async def _hand_over(self, computer: RemoteComputer) -> Record:
        name = computer.name
        try:
            token = await computer.take_over()
        except PotluckError as error:
            raise PeerError(f"{_not_taken(name, error)} {STAYS}") from error
        try:
            await self._join(token, computer.addresses, main=computer.node_id)
        except (PotluckError, OSError) as error:
            why = error.message if isinstance(error, PotluckError) else f"{reason(error)}."
            failed = f"{name} is ready to be the main computer, but this one could not join its home: {why}"
            advice = f"Try again, or share {name} there again."
            raise PeerError(f"{failed} {STAYS} {advice}") from error
        record = Record(became="helper", other=computer.node_id, name=name, home=computer.link.home)
        self._keep(record)
        self._parts.lending.set_role(RoleRequest(worker=True))
        await self._parts.unload()  # a prompt may have come meanwhile
        logger.info("handed over to=%s", short(computer.node_id))
        return record

    async def _join(
        self, token: str, known: Sequence[Address] = (), *, main: NodeId | None = None
    ) -> None:
        """Join the home of a token, whose master has to be `main`, where that is known."""
        parsed = PairingToken.parse(token)
        homes = self._parts.identity.homes.values()
        if any(parsed.is_of(h.home_id) and h.role == "worker" for h in homes):
            return  # it was asked before
        addresses = [*known, *homes_addresses(parsed, self._parts.discovery.peers())]
        member = await self._parts.join(parsed, addresses)
        if main is not None and member.master != main:
            self._parts.identity.remove_home(proofs.home_id(member.membership.authority))
            raise PairingError(
                "It gave a token of another computer's home, which was left at once."
            )

    async def _followed_by(self, record: Record) -> HandedOver:
        await self._bring(record)
        left = self._parts.membership.records.items()
        to_follow = tuple(r.shown for node_id, r in left if node_id != record.other)
        return HandedOver(name=record.name, to_follow=to_follow)

    # --- who follows

    async def look(self) -> None:
        """Go on with what a restart interrupted, and have those follow that can now. Call it again and again."""
        if (record := self._record) is None or self._is_busy:
            return
        is_worker = record.became == "helper"
        if record.is_news and self._parts.lending.saved.worker != is_worker:
            self._parts.lending.set_role(RoleRequest(worker=is_worker))
        if is_worker:
            await self._bring(record)

    async def _bring(self, record: Record) -> None:
        """Have the connected helpers join the home of the new main computer, and leave this one."""
        members = self._parts.membership
        connected = {computer.node_id: computer for computer in members.connected()}
        main = connected.pop(record.other, None)
        if main is None or self._record is not record or self._is_busy:
            return
        self._is_busy = True
        try:
            await asyncio.gather(*(self._bring_one(c, main) for c in connected.values()))
            if not members.records.keys() - {main.node_id}:
                addresses = main.addresses
                await members.forget(main.node_id)  # it has no part in this home any more
                self._parts.discovery.remember(main.node_id, main.name, addresses)
        finally:
            self._is_busy = False

    async def _bring_one(self, computer: RemoteComputer, main: RemoteComputer) -> None:
        now = asyncio.get_running_loop().time()
        link, until = self._again.get(computer.node_id, (None, 0.0))
        if link is computer.link and now < until:
            return
        is_first = link is not computer.link
        self._again[computer.node_id] = computer.link, now + AGAIN_S
        try:
            await computer.follow(await main.invite())
        except PotluckError as error:
            logger.info("does not follow node=%s: %s", short(computer.node_id), error)
            if is_first:
                self._say("warning", _not_followed(computer.name, main.name, error))
            return
        await self._parts.membership.forget(computer.node_id)

    # --- the others

    async def answer(self, link: Link, message: Message) -> Message:
        """Answer the master of a home that is handed over.

        Raises:
            NotAllowedError: the peer is no master, or this computer was not made main by it.
            BusyError: this computer helps another home.
            PotluckError: the token's home cannot be joined.
        """
        if link.peer_role != "master":
            raise NotAllowedError("Only a home's main computer may hand it over.")
        match message:
            case TakeOver():
                return TakenOver(token=self._take_over(link))
            case Invite():
                record = self._record
                if record is None or (record.became, record.home) != ("main", link.home):
                    raise NotAllowedError(
                        "This computer is not the main one in place of that any more."
                    )
                return Invited(token=self._parts.invite())
            case Follow():
                await self._join(message.token)
                self.left.add(link.home)
                return Followed()
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} hands nothing over.")

    def _take_over(self, link: Link) -> str:
        record, master = self._record, NodeId(link.peer.node_id)
        if record is not None and (record.became, record.home) == ("main", link.home):
            return self._parts.invite()  # the answer before was lost
        homes = self._parts.identity.homes.values()
        others = [h.name for h in homes if h.role == "worker" and h.home_id != link.home]
        if others:
            raise BusyError(f"It helps {' and '.join(others)}, too.")
        token = self._parts.invite()
        self._keep(Record(became="main", other=master, name=link.peer.name, home=link.home))
        self._parts.lending.set_role(RoleRequest(worker=False))
        self.left.add(link.home)
        self._say(
            "info",
            f"{link.peer.name} has made this computer the main computer: {link.peer.name} and its"
            f" helpers help it now. To undo that, make {link.peer.name} the main computer.",
        )
        return token

    # --- both

    def _say(self, level: Literal["info", "warning"], text: str) -> None:
        self._parts.events.publish(Notice(level=level, text=text))

    def _keep(self, record: Record | None) -> None:
        self._record = record
        if record is None:
            self._file.unlink(missing_ok=True)
        else:
            write_atomically(self._file, msgspec.json.encode(record))
        self._parts.events.changed()


def _read(file: Path) -> Record | None:
    """What was kept. A damaged file is as none: roles and homes are kept elsewhere."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Record)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError):
        logger.exception("what was kept of a change of the main computer cannot be read")
        return None


def _is_too_old(error: PotluckError) -> bool:
    return error.data.get("kind") == "unknown_op"


def _not_taken(name: str, error: PotluckError) -> str:
    if _is_too_old(error):
        return f"{name} runs an older Potluck, which cannot take over. Update it there."
    if error.code in ("peer_lost", "peer_timeout"):
        return f"{name} stopped answering before it took over. Try again when it is back."
    return f"{name} did not take over. {error.message}"


def _not_followed(name: str, main: str, error: PotluckError) -> str:
    if _is_too_old(error):
        return f"{name} runs an older Potluck, which cannot follow {main}. Update it there: then it does."
    return f"{name} does not help {main} yet: {error.message} It is asked again."
