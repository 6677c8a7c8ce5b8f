"""The values of the local API for the weights on this computer's disk. See `potluck.api.values.schema`."""

from typing import Literal

from msgspec import Struct

from potluck.api.values.errors import Error
from potluck.api.values.schema import ModelName


class VerifyRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/models/verify, answered by `VerifyProgress`es."""

    model: ModelName | None = None  # as in `PlanRequest`; None: all models, and all of the store


class VerifiedModel(Struct, frozen=True, kw_only=True):
    """What a check has found of one model."""

    name: str
    path: str
    nbytes: int  # that were read
    damaged: tuple[str, ...] = ()  # names of tensors whose bytes are not what they were at first
    problem: str | None = None  # why the model could not be read at all


class VerifiedStore(Struct, frozen=True, kw_only=True):
    """The weights of other computers' models, and packed ones of this computer's models."""

    tensors: int = 0
    nbytes: int = 0
    dropped: tuple[str, ...] = ()  # digests that were damaged; they are fetched again when needed


class Verified(Struct, frozen=True, kw_only=True):
    """What a check has found."""

    models: tuple[VerifiedModel, ...]
    store: VerifiedStore

    @property
    def is_intact(self) -> bool:
        """Whether every model is; what was damaged in the store is gone."""
        return not any(model.damaged or model.problem for model in self.models)


class VerifyProgress(Struct, frozen=True, kw_only=True):
    """One server-sent event of POST /cluster/models/verify. `ready` and `failed` are the last."""

    state: Literal["checking", "ready", "failed"]
    fraction: float = 0.0  # 0 to 1, of what is checked now
    message: str = ""  # what is checked now
    result: Verified | None = None  # with `ready`
    error: Error | None = None  # with `failed`


class PruneRequest(Struct, frozen=True, kw_only=True):
    """POST /cluster/models/prune, answered by `Pruned`."""

    dry_run: bool = True  # only say what would be deleted


class Pruned(Struct, frozen=True, kw_only=True):
    """What was deleted or, in a dry run, would be."""

    tensors: int
    nbytes: int  # of both
    deleted: bool
    sessions: int = 0  # caches of conversations
