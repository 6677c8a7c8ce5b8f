"""Pairing by sight: two people compare six digits. The master dials the worker.

    master                                    worker
      pair_begin(commitment to a nonce) ──────▶
      ◀────────────────────── pair_nonce(nonce)
      pair_reveal(nonce, signature) ──────────▶     shows the code
      ◀────────────────── pair_proof(signature)
      shows the same code
      pair_accept ─────────▶  ◀───────────────── pair_accept     in any order, each by a person
      joined(certificate) ────────────────────▶
      ◀─────────────────────────────── pair_done

The code is a hash of everything that both sides saw. An attacker between them must fix its nonces
before it learns theirs. The chance that both codes agree is therefore one in a million per attempt.
"""

from potluck.errors import PairingError
from potluck.wire import proofs
from potluck.wire.messages import Message
from potluck.wire.pairing import (
    Admitted,
    Issue,
    Me,
    Pairing,
    PairingState,
    Refused,
)
from potluck.wire.pairing_messages import (
    Joined,
    PairAccept,
    PairBegin,
    PairDone,
    PairNonce,
    PairProof,
    PairReveal,
)
from potluck.wire.proofs import ProofError, Seen


class MasterBySight(Pairing):
    """The master's side. It dialled; `peer_certificate` is the worker's, from TLS."""

    role = "master"
    _NEXT = {  # noqa: RUF012
        PairingState.COMMITTED: {PairNonce: PairingState.REVEALED},
        PairingState.REVEALED: {PairProof: PairingState.COMPARING},
        PairingState.COMPARING: {PairAccept: PairingState.ACCEPTED_THERE},
        PairingState.ACCEPTED_HERE: {PairAccept: PairingState.ISSUED},
        PairingState.ISSUED: {PairDone: PairingState.PAIRED},
    }
    _AGREED = PairingState.ISSUED

    def __init__(self, me: Me, *, peer_certificate: bytes, issue: Issue, now: float) -> None:
        super().__init__(me, now=now)
        self._peer = peer_certificate
        self._issue = issue

    def start(self) -> list[Message]:
        try:
            self._check_other(self._peer)
        except (ProofError, PairingError) as error:
            self._abort("failed", error if isinstance(error, PairingError) else None)
            return []
        self.state = PairingState.COMMITTED
        return [
            PairBegin(
                versions=self.me.versions,
                name=self.me.name,
                certificate=self.me.certificate,
                commitment=proofs.commit(self._nonce),
            )
        ]

    def _handle(self, message: Message, now: float) -> list[Message]:
        match message:
            case PairNonce():
                if message.version not in self.me.versions:
                    raise Refused("version")
                self.peer_name = message.name
                worker = Seen(name=message.name, certificate=self._peer, nonce=message.nonce)
                self._seen = proofs.transcript(
                    "sight",
                    self.me.versions,
                    message.version,
                    self._side(),
                    worker,
                    proofs.commit(self._nonce),
                )
                return [PairReveal(nonce=self._nonce, signature=self._sign())]
            case PairProof():
                proofs.check_signature(self._peer, "worker", self._seen, message.signature)
                self.code = proofs.short_code(self._seen)
            case PairAccept() if self.state is PairingState.ACCEPTED_HERE:
                return self._agreed()
            case PairDone():
                return self._admit()
            case _:  # pair_accept, while the person here still compares
                pass
        return []

    def _agreed(self) -> list[Message]:
        membership = self._issue(self._peer)
        self.issued = Admitted(node_id=proofs.node_id(self._peer), name=self.peer_name)
        return [membership]


class WorkerBySight(Pairing):
    """The worker's side. It was dialled; the master received its certificate from TLS."""

    role = "worker"
    _NEXT = {  # noqa: RUF012
        PairingState.QUIET: {PairBegin: PairingState.ANSWERED},
        PairingState.ANSWERED: {PairReveal: PairingState.COMPARING},
        PairingState.COMPARING: {PairAccept: PairingState.ACCEPTED_THERE},
        PairingState.ACCEPTED_HERE: {PairAccept: PairingState.AGREED},
        PairingState.AGREED: {Joined: PairingState.PAIRED},
    }

    def __init__(self, me: Me, *, now: float) -> None:
        super().__init__(me, now=now)
        self._begin: PairBegin | None = None
        self._version = 0

    def _handle(self, message: Message, now: float) -> list[Message]:
        match message:
            case PairBegin():
                self._version = self._choose_version(message.versions)
                self._check_other(message.certificate)
                self._begin, self.peer_name = message, message.name
                return [PairNonce(version=self._version, name=self.me.name, nonce=self._nonce)]
            case PairReveal():
                return self._take_reveal(message)
            case Joined():
                assert self._begin is not None
                return self._join(message, self._begin.certificate)
            case _:
                return []

    def _take_reveal(self, reveal: PairReveal) -> list[Message]:
        begin = self._begin
        assert begin is not None
        if proofs.commit(reveal.nonce) != begin.commitment:
            raise ProofError("that is not the nonce it was committed to")
        master = Seen(name=begin.name, certificate=begin.certificate, nonce=reveal.nonce)
        self._seen = proofs.transcript(
            "sight", begin.versions, self._version, master, self._side(), begin.commitment
        )
        proofs.check_signature(begin.certificate, "master", self._seen, reveal.signature)
        self.code = proofs.short_code(self._seen)
        return [PairProof(signature=self._sign())]
