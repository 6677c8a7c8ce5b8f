"""Pairing by token: for computers without a screen. The worker dials the master.

    worker                                               master
      pair_join(name of the token, nonce, port) ─────────▶
      ◀── pair_offer(authority, certificate, nonce, proof)      proves the secret and its home
      pair_claim(proof, signature) ──────────────────────▶      proves the secret; the token is used up
      ◀──────────────────────────────── joined(certificate)
      pair_done ─────────────────────────────────────────▶

The worker trusts a master that proves to know the secret, and whose certificate was issued by the
token's home for the key that TLS showed. No person is asked: pasting the token means consent.
"""

from collections.abc import Sequence

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
from potluck.wire.pairing_messages import Joined, PairClaim, PairDone, PairJoin, PairOffer
from potluck.wire.proofs import Seen
from potluck.wire.token import Invites, PairingToken


class WorkerByToken(Pairing):
    """The worker's side. It dialled; it received the master's certificate from TLS."""

    role = "worker"
    _NEXT = {  # noqa: RUF012
        PairingState.ASKED: {PairOffer: PairingState.AGREED},
        PairingState.AGREED: {Joined: PairingState.PAIRED},
    }

    def __init__(
        self, me: Me, *, port: int, token: PairingToken, peer_certificate: bytes, now: float
    ) -> None:
        super().__init__(me, now=now)
        self._port = port
        self._token = token
        self._peer = peer_certificate

    def start(self) -> list[Message]:
        self.state = PairingState.ASKED
        return [
            PairJoin(
                versions=self.me.versions,
                name=self.me.name,
                certificate=self.me.certificate,
                invite=self._token.invite,
                nonce=self._nonce,
                port=self._port,
            )
        ]

    def _handle(self, message: Message, now: float) -> list[Message]:
        match message:
            case PairOffer():
                return self._take_offer(message)
            case Joined():
                self._check_home(message.authority)
                return self._join(message, self._peer)
            case _:
                return []

    def _take_offer(self, offer: PairOffer) -> list[Message]:
        if offer.version not in self.me.versions:
            raise Refused("version")
        self._check_other(self._peer)
        self._check_home(offer.authority)
        proofs.check_master(offer.authority, offer.certificate, self._peer)
        self.peer_name = offer.name
        master = Seen(name=offer.name, certificate=self._peer, nonce=offer.nonce)
        self._seen = _transcript(
            self.me.versions, offer.version, master, self._side(), offer.authority, self._port
        )
        proofs.check_secret(self._token.secret, "master", self._seen, offer.proof)
        proof = proofs.secret_proof(self._token.secret, "worker", self._seen)
        return [PairClaim(proof=proof, signature=self._sign())]

    def _check_home(self, authority: bytes) -> None:
        if not self._token.is_of(proofs.home_id(authority)):
            raise PairingError(
                "The computer that answered belongs to another home than the token. Check that the"
                " token is from the computer that you want to join, and that it is running.",
                kind="other_home",
            )


class MasterByToken(Pairing):
    """The master's side. It was dialled; the worker received its certificate from TLS.

    Args:
        authority: the certificate of the master's home.
        certificate: the master's own, issued by the authority.
    """

    role = "master"
    _NEXT = {  # noqa: RUF012
        PairingState.QUIET: {PairJoin: PairingState.OFFERED},
        PairingState.OFFERED: {PairClaim: PairingState.ISSUED},
        PairingState.ISSUED: {PairDone: PairingState.PAIRED},
    }

    def __init__(
        self,
        me: Me,
        *,
        authority: bytes,
        certificate: bytes,
        invites: Invites,
        issue: Issue,
        now: float,
    ) -> None:
        super().__init__(me, now=now)
        self._authority = authority
        self._certificate = certificate
        self._invites = invites
        self._issue = issue
        self._invite = b""
        self._secret = b""
        self._worker = b""  # the worker's certificate
        self._port: int | None = None

    def _handle(self, message: Message, now: float) -> list[Message]:
        match message:
            case PairJoin():
                return self._take_join(message, now)
            case PairClaim():
                return self._take_claim(message, now)
            case PairDone():
                return self._admit()
            case _:
                return []

    def _take_join(self, join: PairJoin, now: float) -> list[Message]:
        version = self._choose_version(join.versions)
        self._check_other(join.certificate)
        secret = self._invites.secret(join.invite, now=now)
        only = self._invites.only(join.invite)
        if secret is None or only not in (None, proofs.node_id(join.certificate)):
            raise Refused("token")
        self._invite, self._secret, self._worker = join.invite, secret, join.certificate
        self.peer_name, self._port = join.name, join.port
        worker = Seen(name=join.name, certificate=join.certificate, nonce=join.nonce)
        self._seen = _transcript(
            join.versions, version, self._side(), worker, self._authority, join.port
        )
        return [
            PairOffer(
                version=version,
                name=self.me.name,
                authority=self._authority,
                certificate=self._certificate,
                nonce=self._nonce,
                proof=proofs.secret_proof(secret, "master", self._seen),
            )
        ]

    def _take_claim(self, claim: PairClaim, now: float) -> list[Message]:
        proofs.check_secret(self._secret, "worker", self._seen, claim.proof)
        proofs.check_signature(self._worker, "worker", self._seen, claim.signature)
        if not self._invites.use(self._invite, now=now):
            raise Refused("token")  # another computer used it first
        membership = self._issue(self._worker)
        self.issued = Admitted(
            node_id=proofs.node_id(self._worker), name=self.peer_name, port=self._port
        )
        return [membership]


def _transcript(
    offered: Sequence[int], version: int, master: Seen, worker: Seen, authority: bytes, port: int
) -> bytes:
    return proofs.transcript(
        "token", offered, version, master, worker, authority, str(port).encode()
    )
