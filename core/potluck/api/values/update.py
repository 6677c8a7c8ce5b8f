"""The values of the local API for newer versions of Potluck itself."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

Phase: TypeAlias = Literal[
    "manual",  # not by Potluck; see `message`
    "quiet",  # nothing newer is known
    "looking",
    "offered",  # there is a newer version
    "fetching",
    "trying",  # unpacked and tried
    "waiting",  # until nothing is answered
    "switching",  # this node ends, and the new version starts
    "fetched",  # its file is here; see `message` for how to install it
]
Size = Annotated[int, Meta(ge=0, lt=1 << 50)]


class HomesVersion(Struct, frozen=True, kw_only=True):
    """Another computer of the home, and what it does about the newer version."""

    name: str
    version: str
    message: str = ""


class Update(Struct, frozen=True, kw_only=True):
    """What is known of a newer version, and what becomes of it."""

    phase: Phase
    message: str  # what that means, in a sentence
    failed: bool = False  # whether what was tried last went wrong
    allowed: bool = False  # whether Potluck looks by itself, and follows its main computer
    version: str = ""  # the newer one
    before: str = ""  # the version that can be gone back to
    nbytes: Size = 0  # of the package
    done: Size = 0
    source: str = ""  # a computer of the home or a server that it comes from just now
    from_home: Size = 0
    from_internet: Size = 0
    computers: tuple[HomesVersion, ...] = ()  # that were told

    @property
    def is_working(self) -> bool:
        """Whether a newer version is being installed."""
        return self.phase in ("looking", "fetching", "trying", "waiting", "switching")

    @property
    def fraction(self) -> float:
        return self.done / self.nbytes if self.nbytes else 0.0


class UpdateRequest(Struct, frozen=True, kw_only=True):
    """What is to be done about newer versions."""

    action: Literal["check", "install", "stop", "back"] | None = None
    allowed: bool | None = None  # whether Potluck may look by itself
