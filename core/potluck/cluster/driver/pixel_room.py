"""How many pixels are in memory at a time, of all prompts together: those that are answered, and those that wait.

A picture of some hundred kilobytes becomes megabytes of pixels, which are held until its answer has ended. So a prompt
with pictures takes its room before they are decoded, and keeps as much of it as they have taken. Where there is none,
it waits for its turn; what cannot wait is refused.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from potluck.errors import TooManyRequestsError, format_bytes

MOST_PREPARED = 192 << 20  # bytes of pixels of one prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelLimits:
    """What all prompts may take together.

    Attributes:
        total: bytes of pixels, at least `MOST_PREPARED`.
        waiting: most prompts that wait for room, each with the files of its pictures, some megabytes.
        wait_s: how long one waits, in seconds. Answers that stopped being read may hold the room.
    """

    total: int = 4 * MOST_PREPARED
    waiting: int = 16
    wait_s: float = 120.0


class PixelRoom:
    """The room for pixels, given to prompts in the order in which they come."""

    def __init__(self, limits: PixelLimits | None = None) -> None:
        self._limits = limits or PixelLimits()
        self._taken = 0
        self._waiting = deque[asyncio.Future[None]]()

    @property
    def taken(self) -> int:
        """Bytes that prompts have now."""
        return self._taken

    @asynccontextmanager
    async def held(self) -> AsyncIterator[Callable[[int], None]]:
        """Hold the room of a prompt with pictures, in a `with` block.

        It begins with as much as a prompt may take. The function that it gives is told the bytes of its pixels when
        they are known, and gives the rest back.

        Raises:
            TooManyRequestsError: too many wait already, or it has waited too long.
        """
        await self._take()
        held = MOST_PREPARED

        def keep(nbytes: int) -> None:
            nonlocal held
            assert nbytes <= held, "a prompt has more pixels than it may have"
            self._give_back(held - nbytes)
            held = nbytes

        try:
            yield keep
        finally:
            self._give_back(held)

    async def _take(self) -> None:
        if self._has_room and not self._waiting:
            self._taken += MOST_PREPARED
            return
        if len(self._waiting) >= self._limits.waiting:
            raise self._refused(
                f"There is no room for the pictures of this prompt, and {len(self._waiting)} other prompts wait for it."
            )
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._limits.wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._give_back(MOST_PREPARED)  # it came at the same moment
            elif turn in self._waiting:
                self._waiting.remove(turn)
            if isinstance(error, TimeoutError):
                raise self._refused(
                    f"There was no room for the pictures of this prompt within {self._limits.wait_s:g} seconds."
                ) from None
            raise

    def _give_back(self, nbytes: int) -> None:
        self._taken -= nbytes
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._has_room:
            turn = self._waiting.popleft()
            if not turn.done():  # else it has just been given up
                self._taken += MOST_PREPARED
                turn.set_result(None)

    @property
    def _has_room(self) -> bool:
        return self._taken + MOST_PREPARED <= self._limits.total

    def _refused(self, why: str) -> TooManyRequestsError:
        return TooManyRequestsError(
            f"{why} Those under way take all of the {format_bytes(self._limits.total)} that pictures may have."
            " Send it again when some answers have ended."
        )
