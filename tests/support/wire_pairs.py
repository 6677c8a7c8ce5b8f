"""Computers that pair, with real keys and certificates, and the exchange of their messages."""

import os
from collections.abc import Callable, Sequence

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from frames import feed

from potluck.errors import PairingError
from potluck.ids import HomeId, Role
from potluck.wire import certificates, proofs
from potluck.wire.frame import Frame, FrameDecoder, encode
from potluck.wire.messages import Message
from potluck.wire.pairing import Me, Pairing, PairingState
from potluck.wire.pairing_by_sight import MasterBySight
from potluck.wire.pairing_messages import MAX_PAIRING_HEADER, PAIRING, Joined

NOW = 1000.0


class Computer:
    """A key, its self-signed certificate, and a home that can issue memberships."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.key, self.home_key = certificates.new_key(), certificates.new_key()
        self._own = certificates.self_signed(self.key, name)
        self._home = certificates.new_authority(self.home_key, name)
        self.certificate = certificates.to_der(self._own)
        self.authority = certificates.to_der(self._home)
        self.master = self.certify(self._own, "master")
        self.issued: list[bytes] = []

    def me(self, versions: tuple[int, ...] = (1,)) -> Me:
        return Me(
            name=self.name,
            certificate=self.certificate,
            sign=lambda data: self.key.sign(data, ec.ECDSA(hashes.SHA256())),
            random=os.urandom,
            versions=versions,
        )

    @property
    def home_id(self) -> HomeId:
        return proofs.home_id(self.authority)

    def issue(self, certificate: bytes) -> Joined:
        self.issued.append(certificate)
        return Joined(
            home_name=f"{self.name}'s home",
            authority=self.authority,
            certificate=self.certify(certificates.peer_certificate(certificate), "worker"),
            master=self.master,
        )

    def certify(self, member: x509.Certificate, role: Role) -> bytes:
        issued = certificates.issue_member(self._home, self.home_key, member, role)
        return certificates.to_der(issued)


def over_the_wire(message: Message) -> Message:
    """Encode a message and decode it as the other side does."""
    header, payload = encode(message)
    decoder = FrameDecoder(0, max_header=MAX_PAIRING_HEADER, known=PAIRING)
    feed(decoder, header + bytes(payload))
    frame = decoder.next_event()
    assert isinstance(frame, Frame)
    return frame.message


def master_by_sight(
    main: Computer, shown: Computer, *, versions: tuple[int, ...] = (1,)
) -> MasterBySight:
    """Return the master's side of an attempt, to which TLS showed the certificate of `shown`."""
    return MasterBySight(
        main.me(versions), peer_certificate=shown.certificate, issue=main.issue, now=NOW
    )


Alter = Callable[[Message], Message | None]


def exchange(
    first: Pairing,
    second: Pairing,
    messages: Sequence[Message],
    *,
    alter: Alter | None = None,
    now: float = NOW,
) -> list[Message]:
    """Carry messages in both directions until neither side has any more to send.

    `alter` gets every message and returns the message that arrives instead; None drops it.
    """
    carried: list[Message] = []
    waiting = [(second, first, m) for m in messages]
    while waiting:
        to, sender, message = waiting.pop(0)
        arriving = over_the_wire(message)
        if alter is not None:
            altered = alter(arriving)
            if altered is None:
                continue
            arriving = altered
        carried.append(arriving)
        waiting.extend((sender, to, m) for m in to.receive(arriving, now))
    return carried


def meet(master: Pairing, worker: Pairing) -> None:
    """Exchange messages up to the point where two people compare digits."""
    exchange(master, worker, master.start())


def kind(machine: Pairing) -> object:
    """Return the kind of failure that ended the attempt."""
    assert isinstance(machine.outcome, PairingError)
    assert machine.state is PairingState.FAILED
    return machine.outcome.data["kind"]


def replaced(message: Message, **changes: object) -> Message:
    return msgspec.structs.replace(message, **changes)
