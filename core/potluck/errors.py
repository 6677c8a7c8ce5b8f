"""Every error that Potluck raises on purpose, in one tree.

    PotluckError
    ├── ModelError                  the model's files
    │   ├── UnknownArchitectureError
    │   ├── InvalidConfigError
    │   ├── BrokenModelError
    │   └── PromptError             a prompt that cannot be run
    │       └── ContextExceededError
    ├── PlanError
    │   ├── NotEnoughMemoryError
    │   └── InvalidLayersError
    ├── ProtocolError               bytes on the wire
    │   ├── LocalProtocolError      we would have sent something wrong
    │   ├── RemoteProtocolError     the peer sent something wrong
    │   └── VersionMismatchError
    ├── PairingError                a pairing that failed
    ├── IdentityError               this computer's own key and certificates
    ├── PeerError                   a peer that refuses, fails or is gone
    │   ├── UnreachableError
    │   ├── UntrustedPeerError
    │   ├── PeerLostError
    │   ├── PeerTimeoutError
    │   ├── BusyError               its devices are lent to another home, or paused
    │   ├── NotAllowedError         the peer may not ask for this
    │   └── RemoteError             the peer answered with an error
    ├── StoreError
    │   ├── IntegrityError
    │   └── DiskFullError
    ├── EngineError
    │   ├── ClosedError             Potluck was closed, or stopped serving
    │   ├── NotReadyError           the node or the model is only just being started
    │   ├── InvalidStepError        a step that the stage cannot compute
    │   ├── NeedReplayError
    │   ├── StaleEpochError
    │   ├── UnknownSessionError
    │   ├── OutOfMemoryError
    │   └── RankLostError           of a group that computes layers together
    ├── HubError                    the Hugging Face Hub did not give what was asked
    │   ├── OfflineError            it cannot be reached
    │   └── GatedModelError         its terms must be accepted first, or a token is needed
    └── UsageError                  a request that is not possible in this form
        ├── NotFoundError           no computer, model, pairing… has this name
        │   └── ModelNotFoundError
        ├── GrammarError            what an answer has to follow cannot be followed
        ├── NotHeldError            what holds as long as a program looks, and none does
        └── TooManyRequestsError    too many requests, or too much at once

`code` is stable: the wire, the API and `--json` use it. The message is for people: what happened,
what it means, what to do. `data` has the values that the message was made from.
"""

from collections.abc import Mapping
from typing import ClassVar, TypeAlias

Data: TypeAlias = Mapping[str, str | int | float | bool | None]


def format_bytes(count: float) -> str:
    """Format a size in decimal units for people: `5.2 GB`, `190 MB`."""
    if abs(count) < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if abs(count) < 1000 or unit == "GB":
            break
    return f"{count:.1f}".removesuffix(".0") + f" {unit}"


class PotluckError(Exception):
    """The root of all errors. Catch it only at a boundary, such as a link or an API handler."""

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1

    def __init__(self, message: str, /, **data: str | int | float | bool | None) -> None:
        # Positional only, since a peer chooses the names in the data of its errors.
        super().__init__(message)
        self.message = message
        self.data: Data = data


class ModelError(PotluckError):
    """The model's files cannot be used."""

    code = "model"
    exit_status = 3


class UnknownArchitectureError(ModelError):
    """The model is of a family that the engine does not know."""

    code = "unknown_architecture"


class InvalidConfigError(ModelError):
    """The model's `config.json` contradicts itself or lacks required values."""

    code = "invalid_config"


class BrokenModelError(ModelError):
    """A file of the model is missing, truncated or of the wrong shape."""

    code = "broken_model"


class PromptError(ModelError):
    """The prompt is empty, too long for the context, or not for this model."""

    code = "prompt"


class ContextExceededError(PromptError):
    """A conversation needs more tokens than the context has."""

    code = "context_length_exceeded"  # as clients of OpenAI's API look for it

    def __init__(self, what: str, advice: str, *, context: int, **data: int) -> None:
        """Say what is too long, and what to do.

        Args:
            what: with its length: `the prompt has 9000`.
            advice: one sentence.
            context: tokens that a conversation may have.
            data: other values for `data`.
        """
        # Clients that know no codes look for the first words.
        super().__init__(
            f"This model's maximum context length is {context} tokens here, and {what}. {advice}",
            context=context,
            **data,
        )


class PlanError(PotluckError):
    """No plan meets the request."""

    code = "plan"
    exit_status = 4


class NotEnoughMemoryError(PlanError):
    """The computers together cannot hold the model and its KV cache."""

    code = "not_enough_memory"

    def __init__(
        self,
        needed: int,
        available: int,
        computer: str | None = None,
        *,
        fits_in: str | None = None,  # a quantisation scheme
    ) -> None:
        who = f"{computer} offers" if computer else "the computers offer"
        what = "The share of the model" if computer else "The model"
        advice = "Give it less" if computer else "Add a computer"
        super().__init__(
            f"{what} needs {format_bytes(needed)} and {who}"
            f" {format_bytes(available)}: {format_bytes(needed - available)} are missing."
            f" {advice}, free memory, or choose a smaller model or context."
            + (f" Or load it in {fits_in}, in which it would fit." if fits_in else ""),
            needed=needed,
            available=available,
            computer=computer,
            **({"fits_in": fits_in} if fits_in else {}),
        )


class InvalidLayersError(PlanError):
    """Layers assigned by hand name an unknown computer, or do not cover the model."""

    code = "invalid_layers"


class ProtocolError(PotluckError):
    """Bytes on the wire do not follow `core/PROTOCOL.md`."""

    code = "protocol"
    exit_status = 5


class LocalProtocolError(ProtocolError):
    """This computer tried to send something that the protocol does not allow: our own bug."""

    code = "local_protocol"


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol does not allow."""

    code = "remote_protocol"


class VersionMismatchError(ProtocolError):
    """The two computers have no protocol version in common."""

    code = "version_mismatch"


class PairingError(PotluckError):
    """The pairing was refused, timed out, or was changed by something between the computers."""

    code = "pairing"
    exit_status = 5


class IdentityError(PotluckError):
    """This computer's key or certificates are missing, damaged or do not fit together."""

    code = "identity"
    exit_status = 5


class PeerError(PotluckError):
    """Another computer did not carry out a request."""

    code = "peer"
    exit_status = 5


class UnreachableError(PeerError):
    """No address of the peer could be reached."""

    code = "unreachable"


class UntrustedPeerError(PeerError):
    """The other computer is not in the home, is not the expected one, or was revoked."""

    code = "untrusted_peer"


class PeerLostError(PeerError):
    """The connection to the peer ended, or its heartbeats stopped."""

    code = "peer_lost"


class PeerTimeoutError(PeerError):
    """The peer is connected but did not answer in time."""

    code = "peer_timeout"


class BusyError(PeerError):
    """The computer lends its devices to another home, or has paused lending."""

    code = "busy"


class NotAllowedError(PeerError):
    """The peer is not allowed to make this request, for example by its role."""

    code = "not_allowed"


class RemoteError(PeerError):
    """The peer answered with an error of its own; `data["kind"]` is its code."""

    code = "remote"


class StoreError(PotluckError):
    """The store of weights on this computer's disk failed."""

    code = "store"
    exit_status = 6


class IntegrityError(StoreError):
    """Bytes do not have the digest that was announced."""

    code = "integrity"


class DiskFullError(StoreError):
    """The disk, or the part of it that Potluck may use, is full."""

    code = "disk_full"


class EngineError(PotluckError):
    """A stage could not compute."""

    code = "engine"
    exit_status = 7


class ClosedError(EngineError):
    """Potluck was closed on this computer, or stopped serving, before the answer was complete."""

    code = "closed"


class NotReadyError(EngineError):
    """The node is being started, or the model loaded. Trying again later helps."""

    code = "not_ready"


class InvalidStepError(EngineError):
    """A step's tensor or position is not one that the stage can compute."""

    code = "invalid_step"


class NeedReplayError(EngineError):
    """The stage's KV cache is shorter than the step needs; it ends at `data["position"]`."""

    code = "need_replay"


class StaleEpochError(EngineError):
    """The step belongs to a plan that has been replaced."""

    code = "stale_epoch"


class UnknownSessionError(EngineError):
    """The stage has no KV cache of this session: it was never opened, or was evicted."""

    code = "unknown_session"


class OutOfMemoryError(EngineError):
    """The device has not enough memory for the request."""

    code = "out_of_memory"


class RankLostError(EngineError):
    """A rank of the group that computes these layers together was lost, or its sums did not come."""

    code = "rank_lost"


class HubError(PotluckError):
    """The Hugging Face Hub did not give what was asked for."""

    code = "hub"
    exit_status = 8


class OfflineError(HubError):
    """The Hub cannot be reached. The same request succeeds when it can."""

    code = "offline"


class GatedModelError(HubError):
    """A model is only for those who accepted its terms; `data["page"]` is where to do so."""

    code = "gated"


class UsageError(PotluckError):
    """The user's request is not possible in this form."""

    code = "usage"
    exit_status = 2


class NotFoundError(UsageError):
    """Nothing has the requested name."""

    code = "not_found"


class ModelNotFoundError(NotFoundError):
    """No model at hand has the requested name."""

    code = "model_not_found"  # as clients of OpenAI's API look for it


class GrammarError(UsageError):
    """A schema or grammar is invalid, not supported, or costs too much; `data["param"]` is its field."""

    code = "grammar"


class NotHeldError(UsageError):
    """A request is for as long as a program holds the node, and none does, or not any more."""

    code = "not_held"


class TooManyRequestsError(UsageError):
    """Too many requests, or too much at once; the same request may succeed later."""

    code = "too_many_requests"


def by_code() -> dict[str, type[PotluckError]]:
    """All error classes, keyed by code; a class that only inherits its code is left out."""
    found: dict[str, type[PotluckError]] = {}
    waiting = [PotluckError]
    while waiting:
        kind = waiting.pop()
        found.setdefault(kind.code, kind)
        waiting.extend(kind.__subclasses__())
    return found


def rebuild(
    code: str, message: str, data: Data, *, default: type[PotluckError] = PotluckError
) -> PotluckError:
    """Rebuild an error that another process raised; an unknown code gives `default`."""
    kind = by_code().get(code, default)
    error = kind.__new__(kind)  # without __init__, which would make the message again
    PotluckError.__init__(error, message, **data)
    return error
