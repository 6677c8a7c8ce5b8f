"""The pairings under way at this computer: the state machines of `wire` with I/O and people.

By sight, the master dials the worker, and a person at each of the two computers decides. By token,
the worker dials the master, and nobody is asked. The result of a pairing is stored before the other
side is told that it succeeded.
"""

import asyncio
import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from potluck.api.values.pairing import Pairing as PairingView
from potluck.cluster.events import ComputerPaired, Events, HomeJoined, Notice
from potluck.cluster.membership.attempt import Attempt
from potluck.errors import (
    IdentityError,
    NotFoundError,
    PairingError,
    PeerTimeoutError,
    PotluckError,
)
from potluck.ids import NodeId, short
from potluck.net.identity import Identity
from potluck.net.pairing_link import PairingLink
from potluck.net.transport import dial_pairing
from potluck.reasons import reason
from potluck.tasks import TaskSet
from potluck.wire import proofs
from potluck.wire.messages import Address, Message
from potluck.wire.pairing import (
    PERSON_TIMEOUT_S,
    Admitted,
    Me,
    Member,
    Pairing,
)
from potluck.wire.pairing_by_sight import MasterBySight, WorkerBySight
from potluck.wire.pairing_by_token import MasterByToken, WorkerByToken
from potluck.wire.pairing_messages import Joined, PairBegin, PairJoin, PairRefuse
from potluck.wire.token import INVITE_LIFETIME_S, Invites, PairingToken

logger = logging.getLogger(__name__)

KEEP_ENDED_S = 30.0  # a client may ask how it ended
FIRST_MESSAGE_TIMEOUT_S = 5.0
CODE_TIMEOUT_S = 10.0  # from the first message to the six digits: no person is involved yet
MOST_LEFT_EARLY, LEFT_EARLY_S = 2, 120.0  # so many attempts in so many seconds, then none


class Pairings:
    """Begins and answers pairings, and lists those that are under way.

    Args:
        name: of this computer.
        port: where other computers reach this one.
        may_join: whether this computer offers itself as a worker now.
        events: receives `ComputerPaired` and `HomeJoined`, and `Changed` when the list has changed.
        keep_ended_s: how long a pairing that has ended is still listed.
        person_timeout_s: how long people have to compare the digits.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        name: Callable[[], str],
        port: Callable[[], int],
        may_join: Callable[[], bool],
        events: Events,
        keep_ended_s: float = KEEP_ENDED_S,
        person_timeout_s: float = PERSON_TIMEOUT_S,
    ) -> None:
        self._identity = identity
        self._name = name
        self._port = port
        self._may_join = may_join
        self._events = events
        self._keep_ended_s = keep_ended_s
        self._person_timeout_s = person_timeout_s
        self._invites = Invites(os.urandom)
        self._attempts: dict[str, Attempt] = {}
        self._left_early: deque[float] = deque(maxlen=MOST_LEFT_EARLY)
        self._ids = itertools.count(1)
        self._tasks = TaskSet()

    def views(self) -> tuple[PairingView, ...]:
        return tuple(attempt.view() for attempt in self._attempts.values())

    def under_way(self, node_id: NodeId) -> Attempt | None:
        """The attempt with a computer that has not ended yet; None: there is none."""
        attempts = self._attempts.values()
        return next(
            (a for a in attempts if a.node_id == node_id and a.machine.outcome is None), None
        )

    # --- by sight

    async def ask(self, addresses: Sequence[Address]) -> PairingView:
        """Dial a computer as master. Returns when there are digits to compare, or it has ended.

        Raises:
            UnreachableError: none of the addresses answers.
        """
        link = await dial_pairing(addresses, self._identity)
        assert link.peer_certificate is not None
        node_id = proofs.node_id(link.peer_certificate)
        if (known := self.under_way(node_id)) is not None:
            link.close()
            return known.view()
        self._identity.create_home(self._name())
        machine = MasterBySight(
            self._me(), peer_certificate=link.peer_certificate, issue=self._issue, now=_now()
        )
        attempt = self._enter(machine, node_id, f"{addresses[0].host}", link)
        self._tasks.spawn(self._run(attempt, machine.start()), name="pairing")
        await self._await_code(attempt)
        return attempt.view()

    async def decide(self, attempt_id: str, accept: bool) -> PairingView:
        """Accept or refuse the digits, as the person at this computer decided.

        Raises:
            NotFoundError: this pairing is not known or has ended.
        """
        attempt = self._attempts.get(attempt_id)
        if attempt is None:
            raise NotFoundError("This pairing has ended. Ask again.")
        machine = attempt.machine
        messages = machine.accept(_now()) if accept else machine.refuse()
        for message in messages:
            await attempt.link.send(message)
        if not accept:
            attempt.link.close()  # wakes the task that drives it
        self._events.changed()
        return attempt.view()

    async def _await_code(self, attempt: Attempt) -> None:
        try:
            async with asyncio.timeout(CODE_TIMEOUT_S):
                await attempt.compared.wait()
        except TimeoutError:
            pass  # the view says `asking`, and the machine's own deadline ends it

    def _enter(self, machine: Pairing, node_id: NodeId, name: str, link: PairingLink) -> Attempt:
        attempt = Attempt(
            id=str(next(self._ids)),
            machine=machine,
            node_id=node_id,
            name=name,
            link=link,
            compared=asyncio.Event(),
        )
        self._attempts[attempt.id] = attempt
        self._events.changed()
        return attempt

    async def _run(self, attempt: Attempt, first: list[Message]) -> None:
        """Drive one attempt by sight to its end, and remove it from the list some time later."""
        try:
            await self._drive(attempt.machine, attempt.link, first, attempt)
        finally:
            attempt.link.close()
            attempt.compared.set()
            self._events.changed()
            asyncio.get_running_loop().call_later(self._keep_ended_s, self._forget, attempt)

    def _forget(self, attempt: Attempt) -> None:
        self._attempts.pop(attempt.id, None)
        self._events.changed()

    # --- by token

    def invite(self, addresses: Sequence[Address], only: NodeId | None = None) -> tuple[str, float]:
        """Make a token for one computer. Returns it and the seconds for which it is valid.

        `only`: no other computer can use it.
        """
        home = self._identity.create_home(self._name())
        token = self._invites.create(home.home_id, addresses, now=_now(), only=only)
        return str(token), INVITE_LIFETIME_S

    async def join(self, token: PairingToken, addresses: Sequence[Address]) -> Member:
        """Join the token's home as a worker.

        Raises:
            UnreachableError: the home's master does not answer.
            PairingError: the pairing failed.
        """
        link = await dial_pairing([*addresses, *token.addresses], self._identity)
        try:
            assert link.peer_certificate is not None
            machine = WorkerByToken(
                self._me(),
                port=self._port(),
                token=token,
                peer_certificate=link.peer_certificate,
                now=_now(),
            )
            await self._drive(machine, link, machine.start())
        finally:
            link.close()
        if isinstance(machine.outcome, Member):
            return machine.outcome
        assert isinstance(machine.outcome, PairingError)
        raise machine.outcome

    # --- both

    async def serve(self, link: PairingLink) -> None:
        """Answer a peer that dialled this computer in order to pair."""
        first = await link.receive(FIRST_MESSAGE_TIMEOUT_S)
        match first:
            case PairBegin() if self._may_join():
                if self._is_tried_out():
                    await link.send(PairRefuse(kind="busy"))
                    return
                machine = WorkerBySight(self._me(), now=_now())
                answers = machine.receive(first, _now())
                if machine.outcome is not None:
                    await _send(link, answers)
                    return
                node_id = proofs.node_id(first.certificate)
                attempt = self._enter(machine, node_id, first.name, link)
                await self._run(attempt, answers)
                if not attempt.had_code:
                    self._left_early.append(_now())
            case PairJoin() if (home := self._identity.own_home) is not None:
                token_machine = MasterByToken(
                    self._me(),
                    authority=home.ca_pem,
                    certificate=home.certificate_pem,
                    invites=self._invites,
                    issue=self._issue,
                    now=_now(),
                )
                answers = token_machine.receive(first, _now())
                await self._drive(token_machine, link, answers)
            case _:
                await link.send(PairRefuse(kind="refused"))

    def _is_tried_out(self) -> bool:
        """Whether masters begin pairings and leave before there are digits to compare.

        One that stands in between two computers learns the digits before this computer shows them,
        and could go on until they happen to be those of the other one.
        """
        open_ones = (a for a in self._attempts.values() if a.machine.role == "worker")
        without = sum(a.machine.outcome is None and not a.had_code for a in open_ones)
        left = sum(when > _now() - LEFT_EARLY_S for when in self._left_early)
        if without + left < MOST_LEFT_EARLY:
            return False
        self._events.publish(
            Notice(
                level="warning",
                text="Somebody begins to pair with this computer again and again, and leaves before"
                " there are digits to compare: something on this network may be interfering."
                f" Pairing by digits waits for {LEFT_EARLY_S / 60:.0f} minutes.",
            )
        )
        return True

    async def _drive(
        self,
        machine: Pairing,
        link: PairingLink,
        messages: list[Message],
        attempt: Attempt | None = None,
    ) -> None:
        """Pass messages until there is an outcome, store it, and send the last messages."""
        while machine.outcome is None:
            try:
                await _send(link, messages)
                if attempt is not None and machine.code:
                    attempt.had_code = True
                    attempt.compared.set()
                self._events.changed()
                message = await link.receive(max(0.0, machine.deadline - _now()))
                messages = machine.receive(message, _now())
            except PeerTimeoutError:
                messages = machine.tick(_now())
            except PairingError as error:
                logger.info("the connection of a pairing ended: %s", error)
                machine.lost()
                messages = []
        try:
            self._settle(machine, link.remote)
        except (PotluckError, OSError) as error:
            logger.exception("a pairing could not be stored")
            messages = machine.fail(_not_stored(error))
        with suppress(PairingError):  # the peer may have closed the connection
            await _send(link, messages)
        self._events.changed()

    def _settle(self, machine: Pairing, remote: Address) -> None:
        """Store the outcome. This happens before the last message tells it to the peer."""
        match machine.outcome:
            case Member() as member:
                self._identity.add_home(
                    ca_pem=member.membership.authority,
                    certificate_pem=member.membership.certificate,
                    name=member.membership.home_name,
                    master=member.master,
                )
                logger.info("joined a home master=%s", short(member.master))
                self._events.publish(HomeJoined(master_name=member.master_name))
            case Admitted() as admitted:
                logger.info("admitted a computer node=%s", short(admitted.node_id))
                address = Address(host=remote.host, port=admitted.port or remote.port)
                self._events.publish(
                    ComputerPaired(node_id=admitted.node_id, name=admitted.name, address=address)
                )
            case _ if machine.issued is not None:  # it failed, and its certificate is revoked
                self._identity.revoke(machine.issued.node_id)
            case _:
                pass

    def _me(self) -> Me:
        return Me(
            name=self._name(),
            certificate=self._identity.certificate_der,
            sign=self._identity.sign,
            random=os.urandom,
            person_timeout_s=self._person_timeout_s,
        )

    def _issue(self, certificate: bytes) -> Joined:
        try:
            home = self._identity.create_home(self._name())
            issued = self._identity.issue(certificate)
        except (IdentityError, OSError) as error:
            raise _not_stored(error) from error
        return Joined(
            home_name=home.name,
            authority=home.ca_pem,
            certificate=issued,
            master=home.certificate_pem,
        )


async def _send(link: PairingLink, messages: Sequence[Message]) -> None:
    for message in messages:
        await link.send(message)


def _not_stored(error: PotluckError | OSError) -> PairingError:
    """The error for a pairing that this computer cannot store."""
    if isinstance(error, PairingError):
        return error
    why = error.message.rstrip(".") if isinstance(error, PotluckError) else reason(error)
    return PairingError(
        f"This computer cannot store the pairing: {why}. Nothing was paired.", kind="failed"
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
