"""What stage processes wait for: an engine that they can compute with."""

from pathlib import Path
from typing import Protocol

from potluck.errors import EngineError


class EngineGate(Protocol):
    """Says whether there is an engine, and where."""

    @property
    def is_there(self) -> bool:
        """Whether stage processes can be started."""
        ...

    async def wait(self) -> None:
        """Wait until they can; there is no deadline, since a person decides."""
        ...

    def folder(self) -> Path | None:
        """What a stage process needs in its PYTHONPATH; None: nothing."""
        ...

    def lacking(self) -> EngineError:
        """Why they cannot be started."""
        ...

    def works(self) -> None:
        """A stage process has started. Blocks."""
        ...

    def does_not_work(self) -> bool:
        """Stage processes do not start. Returns whether there is another engine now. Blocks."""
        ...


class OwnEngine:
    """Torch is in the own Python."""

    is_there = True

    async def wait(self) -> None:
        """Return at once."""

    def folder(self) -> Path | None:
        return None

    def lacking(self) -> EngineError:
        return EngineError("PyTorch is missing in the Python of Potluck.")

    def works(self) -> None:
        """Keep it."""

    def does_not_work(self) -> bool:
        return False
