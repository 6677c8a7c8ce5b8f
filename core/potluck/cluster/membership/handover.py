"""The main computer changes: one of the helpers takes over, and this computer and the others help it.

Homes stay whose they are. The new main computer gets a home of its own, and the computers of the old one join that
by tokens which the old main computer passes on to them: it vouches for them, as they have trusted it. At every moment
somebody is the main computer: the other one takes over before this one helps. A helper that is off, or too old,
follows when it can: until then this computer is still the master of its home, and asks for a token for it.
"""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from potluck.api.values.schema import Became, HandedOver, RoleRequest
from potluck.cluster.membership.handover_answers import HandoverAnswers, HandoverParts
from potluck.cluster.membership.handover_record import Record
from potluck.cluster.membership.handover_words import STAYS, asked, not_followed
from potluck.cluster.membership.remote import RemoteComputer
from potluck.errors import (
    BusyError,
    NotFoundError,
    PairingError,
    PeerError,
    PotluckError,
    UsageError,
)
from potluck.ids import HomeId, NodeId, short
from potluck.net.link import Link
from potluck.reasons import reason
from potluck.wire.handover_messages import (
    Known,
)
from potluck.wire.token import PairingToken

logger = logging.getLogger(__name__)

LOOK_S: Final = 5.0  # between two looks at whether somebody can follow
AGAIN_S: Final = 60.0  # until a computer that could not follow is asked again: pairings are limited


class Handover(HandoverAnswers):
    """Both sides of a change of the main computer; the file keeps it over restarts."""

    def __init__(self, parts: HandoverParts, file: Path) -> None:
        super().__init__(parts, file)
        self._is_busy = False
        self._again: dict[NodeId, tuple[Link, float]] = {}  # who could not follow, until when

    @property
    def is_helper(self) -> bool:
        """Whether another computer is the main one in place of this one."""
        return self._record is not None and self._record.became == "helper"

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

    def home_left(self, home_id: HomeId) -> bool:
        """Note that a home was left. Returns whether that is for the home of another main computer."""
        if (record := self._main_for(home_id)) is not None:
            self._keep(msgspec.structs.replace(record, is_left=True))
        is_change, self._left = home_id in self._left, self._left - {home_id}
        return is_change

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
        self._check_quiet(stop_answers=stop_answers)
        self._is_busy = True
        try:
            await asked(computer.name, computer.would_take_over())
            self._check_quiet(stop_answers=stop_answers)  # a prompt may have come meanwhile
            await self._parts.unload()
            record = await self._hand_over(computer)
        finally:
            self._is_busy = False
        return await self._followed_by(record)

    def _check_quiet(self, *, stop_answers: bool) -> None:
        if self._parts.is_asked() and not stop_answers:
            raise BusyError("An answer is under way. Wait until it has ended, or have it stopped.")

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
        token = await asked(name, computer.take_over(self._known(computer)))
        try:
            await self._join_of(computer, token)
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

    def _known(self, computer: RemoteComputer) -> Known | None:
        record = self._parts.membership.records.get(computer.node_id)
        return record.known() if record is not None else None

    async def _join_of(self, computer: RemoteComputer, text: str) -> None:
        """Join the home of a token, whose master has to be this computer.

        It is dialled where it is connected, and where its home was found: the addresses of the token are its
        word alone, and could be those of anything here or in the Internet.
        """
        token, identity = replace(PairingToken.parse(text), addresses=()), self._parts.identity
        before = set(identity.homes)
        master, _ = await self._join(token, computer.addresses)
        if master != computer.node_id:
            for home_id in filter(token.is_of, identity.homes.keys() - before):
                identity.remove_home(home_id)
            raise PairingError("It gave a token of another computer's home, which is not helped.")

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
            await computer.follow(await main.invite(computer.node_id, self._known(computer)))
        except PotluckError as error:
            logger.info("does not follow node=%s: %s", short(computer.node_id), error)
            if is_first:
                self._say("warning", not_followed(computer.name, main.name, error))
            return
        await self._parts.membership.forget(computer.node_id)
