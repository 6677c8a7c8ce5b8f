"""The common part of both ways of pairing: a state machine without I/O, and its outcomes.

The two ways are in `pairing_by_sight.py` and `pairing_by_token.py`.

Rules of the file:
- A machine never raises because of a peer's message: it ends, with a PairingError as outcome.
- The master issues no certificate before the person at the master has accepted. Once it has issued
  one, a silent worker may be a member and counts as one; if either side refuses, the worker is not
  a member.
- People read only our own sentences, never text from a peer that is not paired yet.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, TypeAlias

from potluck.errors import PairingError
from potluck.ids import NodeId, Role
from potluck.wire import proofs
from potluck.wire.messages import Message
from potluck.wire.pairing_messages import (
    Joined,
    PairAccept,
    PairDone,
    PairRefuse,
    Refusal,
)
from potluck.wire.proofs import ProofError, Seen
from potluck.wire.versions import PROTOCOL_VERSIONS

NONCE_BYTES: Final = 32
EXCHANGE_TIMEOUT_S: Final = 10.0  # between two messages of two programs
PERSON_TIMEOUT_S: Final = 120.0  # for two people in two rooms to compare six digits


class PairingState(Enum):
    """The state of a pairing."""

    QUIET = "nothing was said yet"
    COMMITTED = "we fixed our nonce and wait for theirs"
    ANSWERED = "we gave our nonce and wait for the one they fixed"
    REVEALED = "we showed our nonce and wait for a proof of their key"
    COMPARING = "two people compare six digits"
    ACCEPTED_HERE = "the person here agreed, the one there has not yet"
    ACCEPTED_THERE = "the person there agreed, the one here has not yet"
    ASKED = "we named our token and wait for the home to prove itself"
    OFFERED = "we proved to be the token's home and wait for the proof of its secret"
    AGREED = "we wait for our certificate"
    ISSUED = "the certificate is on its way"
    PAIRED = "both belong to one home"
    FAILED = "nothing was paired"


_WAITS_FOR_PEOPLE: Final = (PairingState.ACCEPTED_HERE, PairingState.ACCEPTED_THERE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Me:
    """What a pairing must know about this computer."""

    name: str
    certificate: bytes  # self-signed, DER; the TLS certificate of pairing connections
    sign: Callable[[bytes], bytes]  # ECDSA with SHA-256 and the certificate's key
    random: Callable[[int], bytes]  # returns this many unpredictable bytes
    versions: tuple[int, ...] = PROTOCOL_VERSIONS
    person_timeout_s: float = PERSON_TIMEOUT_S


Issue: TypeAlias = Callable[[bytes], Joined]
"""Issues a membership for a self-signed certificate. May raise PairingError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The master's outcome: the other computer is now a worker of the home."""

    node_id: NodeId
    name: str
    port: int | None = None  # where it listens; None if the master dialled it


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The worker's outcome. Store it before sending the message that came with it."""

    membership: Joined
    master: NodeId
    master_name: str


Outcome: TypeAlias = Admitted | Member | PairingError

SENTENCES: Final[Mapping[Refusal, str]] = {
    "refused": "The other computer refused the pairing.",
    "timed_out": "The other computer gave no answer in time. Nothing was paired; try again.",
    "tampered": "The two computers do not see the same: something between them may be interfering."
    " Nothing was paired. Try again on a network that you trust.",
    "token": "This token was used already, has expired or was withdrawn. `potluck invite` on the"
    " main computer prints a new one.",
    "version": "The two computers run versions of Potluck that do not understand each other."
    " Update the older one.",
    "busy": "The other computer is asked to pair too often right now. Wait a minute and try again.",
    "failed": "The other computer could not complete the pairing. Nothing was paired; try again.",
}


class Refused(Exception):  # noqa: N818, not an error of this program
    """Raised inside a machine to end it. Never leaves `wire`."""

    def __init__(self, kind: Refusal) -> None:
        super().__init__(kind)
        self.kind: Refusal = kind


class Pairing(ABC):
    """One side of one pairing attempt.

    Obligations of the driver: send what each call returns, in order, before anything else; call
    `tick` at `deadline`; call `lost` when the connection ends; stop when `outcome` is set.
    """

    role: ClassVar[Role]
    _NEXT: ClassVar[Mapping[PairingState, Mapping[type[Message], PairingState]]]
    _AGREED: ClassVar[PairingState] = PairingState.AGREED  # the state after both have accepted

    def __init__(self, me: Me, *, now: float) -> None:
        self.me = me
        self.state = PairingState.QUIET
        self.peer_name = ""
        self.code: str | None = None  # such as `427 918`; set from COMPARING on
        self.outcome: Outcome | None = None
        self.issued: Admitted | None = None  # at the master, once it has issued a certificate
        self.deadline = now + EXCHANGE_TIMEOUT_S
        self._nonce = me.random(NONCE_BYTES)
        self._seen = b""  # the transcript's hash, once it is complete

    def start(self) -> list[Message]:
        """Return the first messages; the side that was dialled sends none."""
        return []

    def receive(self, message: Message, now: float) -> list[Message]:
        """Handle one message. Returns the messages to send; none after the end."""
        if self.outcome is not None:
            return []
        if isinstance(message, PairRefuse):
            return self._end(message.kind, PairingError(SENTENCES[message.kind], kind=message.kind))
        following = self._NEXT.get(self.state, {}).get(type(message))
        if following is None:
            return self._abort("tampered")
        try:
            answers = self._handle(message, now)
        except ProofError:
            return self._abort("tampered")
        except Refused as refused:
            return self._abort(refused.kind)
        except PairingError as error:
            return self._abort("failed", error)
        self._enter(following, now)
        return answers

    def accept(self, now: float) -> list[Message]:
        """The person here confirms that the digits are equal. A repeated call has no effect."""
        match self.state:
            case PairingState.COMPARING:
                self._enter(PairingState.ACCEPTED_HERE, now)
                return [PairAccept()]
            case PairingState.ACCEPTED_THERE:
                try:
                    answers = [PairAccept(), *self._agreed()]
                except PairingError as error:
                    return self._abort("failed", error)
                self._enter(self._AGREED, now)
                return answers
            case _:
                return []

    def refuse(self) -> list[Message]:
        """The person here refuses. This also cancels an earlier `accept`."""
        return self._abort("refused", PairingError("You refused the pairing.", kind="refused"))

    def fail(self, error: PairingError) -> list[Message]:
        """Turn a success into a failure, because this computer could not store the result."""
        self.outcome = None
        return self._abort("failed", error)

    def tick(self, now: float) -> list[Message]:
        """End the attempt if its time is up."""
        if now < self.deadline:
            return []
        return self._admit() if self.issued is not None else self._abort("timed_out")

    def lost(self) -> None:
        """Handle the end of the connection."""
        if self.issued is not None and self.outcome is None:
            self._admit()
        self._abort(
            "failed",
            PairingError(
                "The connection to the other computer ended. Nothing was paired; try again.",
                kind="lost",
            ),
        )

    # --- for the subclasses

    @abstractmethod
    def _handle(self, message: Message, now: float) -> list[Message]:
        """Handle a message that is allowed in the current state. Returns the messages to send.

        Raises:
            ProofError: a proof of the peer is wrong.
            Refused: end with a reason that the peer is told.
            PairingError: end with an error that has its own message.
        """

    def _agreed(self) -> list[Message]:
        """The messages that this side sends when both have accepted."""
        return []

    def _admit(self) -> list[Message]:
        """End a successful pairing, at the master."""
        self.state, self.outcome = PairingState.PAIRED, self.issued
        return []

    def _join(self, membership: Joined, master: bytes) -> list[Message]:
        """End a successful pairing, at the worker.

        A member of a home has its authority's certificate too, and may hand it out as its own
        home's. So the home must have issued a master's certificate for the key of this pairing.

        Args:
            membership: what the master sent.
            master: the certificate with which the master took part in this pairing.

        Raises:
            ProofError: the home's master is another computer.
        """
        proofs.check_master(membership.authority, membership.master, master)
        self.outcome = Member(
            membership=membership, master=proofs.node_id(master), master_name=self.peer_name
        )
        return [PairDone()]

    def _enter(self, state: PairingState, now: float) -> None:
        self.state = state
        if state is PairingState.COMPARING:
            self.deadline = now + self.me.person_timeout_s
        elif state not in _WAITS_FOR_PEOPLE:  # both people share one deadline
            self.deadline = now + EXCHANGE_TIMEOUT_S

    def _abort(self, kind: Refusal, error: PairingError | None = None) -> list[Message]:
        """End the attempt, and tell the peer."""
        if self.outcome is not None:
            return []
        self._end(kind, error or PairingError(SENTENCES[kind], kind=kind))
        versions = self.me.versions if kind == "version" else ()
        return [PairRefuse(kind=kind, versions=versions)]

    def _end(self, kind: Refusal, error: PairingError) -> list[Message]:
        self.state, self.outcome, self.code = PairingState.FAILED, error, None
        return []

    def _choose_version(self, offered: Sequence[int]) -> int:
        common = set(offered) & set(self.me.versions)
        if not common:
            raise Refused("version")
        return max(common)

    def _check_other(self, certificate: bytes) -> NodeId:
        """Return the peer's node id; raise if the peer is this computer itself."""
        found = proofs.node_id(certificate)
        if found == proofs.node_id(self.me.certificate):
            raise PairingError("A computer cannot be paired with itself.", kind="self")
        return found

    def _sign(self) -> bytes:
        return self.me.sign(proofs.to_sign(self.role, self._seen))

    def _side(self) -> Seen:
        return Seen(name=self.me.name, certificate=self.me.certificate, nonce=self._nonce)
