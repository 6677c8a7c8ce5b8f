"""The values of the local API for the engine: PyTorch, which computes, and may be installed after the program."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

Phase: TypeAlias = Literal[
    "own",  # Potluck's own Python has it; nothing is installed
    "ready",  # it was installed
    "missing",  # it can be installed
    "fetching",
    "unpacking",  # and tried
    "failed",  # to be installed; see `message`
    "none",  # there is none for this computer; see `message`
]
Size = Annotated[int, Meta(ge=0, lt=1 << 50)]


class Engine(Struct, frozen=True, kw_only=True):
    """The engine of this computer."""

    phase: Phase
    message: str  # what that means, in a sentence
    failed: bool = False  # whether what was tried last went wrong; what was there before is used on
    variant: str = ""  # `cpu`, `cuda` or `metal`; `own`: the owner's wheels
    version: str = ""  # of PyTorch
    nbytes: Size = 0  # of the files that are or would be fetched
    done: Size = 0  # of them, that are here or unpacked
    source: str = ""  # a computer of the home or a server that they come from just now
    from_home: Size = 0  # bytes that came from computers of the home since the node was started
    from_internet: Size = 0

    @property
    def is_working(self) -> bool:
        """Whether it is being installed."""
        return self.phase in ("fetching", "unpacking")

    @property
    def fraction(self) -> float:
        return self.done / self.nbytes if self.nbytes else 0.0


class EngineRequest(Struct, frozen=True, kw_only=True):
    """What is to be done with the engine."""

    action: Literal["install", "repair", "stop", "remove"]
    folder: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    """Of wheels of the owner, for `install`; None: those that the release lists are fetched."""
