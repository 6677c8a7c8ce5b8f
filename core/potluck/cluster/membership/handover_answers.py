"""What a computer of a home answers when the home's main computer hands over: it takes over, or follows."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import msgspec

from potluck.api.values.schema import RoleRequest
from potluck.cluster.events import Events, Notice
from potluck.cluster.membership.calls import Addresses
from potluck.cluster.membership.handover_record import Record, read_record
from potluck.cluster.membership.handover_words import not_joined
from potluck.cluster.membership.membership import Members
from potluck.cluster.membership.named import homes_addresses
from potluck.cluster.worker.lending import LendingSettings
from potluck.errors import (
    BusyError,
    NotAllowedError,
    PairingError,
    PotluckError,
    RemoteProtocolError,
)
from potluck.files import write_atomically
from potluck.ids import HomeId, NodeId
from potluck.net.identity import Identity
from potluck.net.link import Link
from potluck.wire.handover_messages import (
    Follow,
    Followed,
    Invite,
    Invited,
    Known,
    TakenOver,
    TakeOver,
)
from potluck.wire.messages import Address, Message
from potluck.wire.pairing import Member
from potluck.wire.token import PairingToken

logger = logging.getLogger(__name__)

MAX_HELPERS: Final = 32  # that are named to who takes over; it makes each of them a member


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverParts:
    """What a handover uses of a node.

    Attributes:
        join: joins the home of a token.
        invite: makes a token of the own home for one computer; the home is made if there is none.
        masters: the open connections of masters.
        check: returns where a master may have this computer dial; raises UnreachableError if one of these is forbidden.
        is_asked: whether prompts are answered, or wait.
        unload: frees the model on all computers.
        rename: gives this computer a name.
    """

    identity: Identity
    membership: Members
    discovery: Addresses
    lending: LendingSettings
    events: Events
    join: Callable[[PairingToken, Sequence[Address]], Awaitable[Member]]
    invite: Callable[[NodeId], str]
    masters: Callable[[], Sequence[Link]]
    check: Callable[[Link, Sequence[Address]], tuple[Address, ...]]
    is_asked: Callable[[], bool]
    unload: Callable[[], Awaitable[None]]
    rename: Callable[[str], object]


class HandoverAnswers:
    """What each computer knows of a change of the main computer; the file keeps it over restarts."""

    def __init__(self, parts: HandoverParts, file: Path) -> None:
        self._parts, self._file = parts, file
        self._record = read_record(file)
        self._left: set[HomeId] = set()  # homes that this computer leaves for that of another main
        self._following: set[HomeId] = set()  # whose masters have this computer follow just now
        self._followed: dict[HomeId, Link] = {}  # on which link it has

    async def answer(self, link: Link, message: Message) -> Message:
        """Answer the master of a home that is handed over.

        Raises:
            NotAllowedError: the peer is no master, this computer does not lend itself, or was not
                made main by it.
            BusyError: this computer helps another home, or follows already.
            UnreachableError: the token's home cannot be joined, for whatever reason.
        """
        if link.peer_role != "master":
            raise NotAllowedError("Only a home's main computer may hand it over.")
        match message:
            case TakeOver():
                return self._take_over(link, message)
            case Invite():
                return Invited(token=self._invite(link, message))
            case Follow():
                await self._follow(link, message.token)
                return Followed()
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} hands nothing over.")

    def _take_over(self, link: Link, message: TakeOver) -> TakenOver:
        master = NodeId(link.peer.node_id)
        is_done = self._main_for(link.home) is not None
        if not is_done:
            self._check_helps(link)
        if message.only_asks:
            return TakenOver()
        token, known = self._parts.invite(master), message.known or Known()
        self._parts.membership.expect(master, Known(color=known.color))  # they change places
        if is_done:
            return TakenOver(token=token)  # the answer before was lost
        self._keep(Record(became="main", other=master, name=link.peer.name, home=link.home))
        self._be_main(known)
        self._left.add(link.home)
        self._say(
            "info",
            f"{link.peer.name} has made this computer the main computer: {link.peer.name} and its"
            f" helpers help it now. To undo that, make {link.peer.name} the main computer.",
        )
        return TakenOver(token=token)

    def _be_main(self, known: Known) -> None:
        """Take the role, and the name and the limit of the old home where the owner here has chosen none."""
        lending, name = self._parts.lending, known.alias.strip()
        memory = known.memory if lending.saved.memory_limit is None else None
        lending.set_role(RoleRequest(worker=False, memory=memory))
        if name and lending.saved.name is None:
            self._parts.rename(name)

    def _main_for(self, home: HomeId) -> Record | None:
        """What is kept, if this computer is the main one in place of that home's, still."""
        record = self._record
        if record is None or record.is_left or (record.became, record.home) != ("main", home):
            return None
        return record

    def _check_helps(self, link: Link, joining: PairingToken | None = None) -> None:
        """Check that the owner lends this computer, and to no home but this and the one of a token."""
        if not self._parts.lending.settings.worker:
            raise NotAllowedError("It does not lend itself: its owner uses it as a main computer.")
        others = [
            home.name
            for home in self._parts.identity.homes.values()
            if home.role == "worker" and home.home_id != link.home
            if joining is None or not joining.is_of(home.home_id)
        ]
        if others:
            raise BusyError(f"It helps {' and '.join(others)}, too.")

    def _invite(self, link: Link, message: Invite) -> str:
        """A token for one computer of the old home. Asked again, another one in place of that."""
        helper = NodeId(message.node_id)
        if (record := self._main_for(link.home)) is None:
            raise NotAllowedError("This computer is not the main one in place of that any more.")
        if helper not in record.helpers:
            if len(record.helpers) >= MAX_HELPERS:
                raise NotAllowedError(f"{MAX_HELPERS} computers were named already. Pair it there.")
            self._keep(msgspec.structs.replace(record, helpers=(*record.helpers, helper)))
        if message.known is not None:
            self._parts.membership.expect(helper, message.known)
        return self._parts.invite(helper)

    async def _follow(self, link: Link, text: str) -> None:
        """Join the home of a token in place of this one, once for each connection of its master."""
        try:
            token = PairingToken.parse(text)
        except PairingError as error:
            raise not_joined(error) from None
        self._check_helps(link, joining=token)
        is_done = self._followed.get(link.home) is link
        if is_done and any(map(token.is_of, self._parts.identity.homes)):
            return  # the answer before was lost
        if is_done or link.home in self._following:
            raise BusyError("It follows another computer already.")
        self._following.add(link.home)
        try:
            dialled = replace(token, addresses=self._parts.check(link, token.addresses))
            _, name = await self._join(dialled)
        except (PotluckError, OSError) as error:
            raise not_joined(error) from None
        finally:
            self._following.discard(link.home)
        self._followed[link.home] = link
        self._left.add(link.home)
        self._say(
            "info",
            f"{link.peer.name} has made {name} the main computer in its place: this computer helps"
            f" {name} now. To help nobody, stop sharing.",
        )

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

    async def _join(self, token: PairingToken, known: Sequence[Address] = ()) -> tuple[NodeId, str]:
        """Join the home of a token. Returns the id and the name of its master.

        Only a connection says that this computer is of the home still: its master may have removed
        it while it was off.
        """
        for link in self._parts.masters():
            if token.is_of(link.home):
                return NodeId(link.peer.node_id), link.peer.name
        addresses = [*known, *homes_addresses(token, self._parts.discovery.peers())]
        member = await self._parts.join(token, addresses)
        return member.master, member.master_name
