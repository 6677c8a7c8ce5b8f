"""What people and masters read of a change of the main computer that does not go on."""

import logging
from collections.abc import Awaitable
from typing import Final, TypeVar

from potluck.errors import PeerError, PotluckError, UnreachableError

logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

STAYS: Final = "This computer stays the main computer."
NOT_JOINED: Final = "The home of that token cannot be joined from here."
"""All that a master hears of a join that failed: it must not learn what answers at an address."""


async def asked(name: str, answer: Awaitable[_Answer]) -> _Answer:
    """The answer of a computer that is asked to take over.

    Raises:
        PeerError: why it does not.
    """
    try:
        return await answer
    except PotluckError as error:
        raise PeerError(f"{_not_taken(name, error)} {STAYS}") from error


def not_joined(error: Exception) -> UnreachableError:
    """The one sentence that a master hears; the log has the reason."""
    logger.info("cannot follow: %s", error)
    return UnreachableError(NOT_JOINED)


def _is_too_old(error: PotluckError) -> bool:
    return error.data.get("kind") == "unknown_op"


def _not_taken(name: str, error: PotluckError) -> str:
    if _is_too_old(error):
        return f"{name} runs an older Potluck, which cannot take over. Update it there."
    if error.code in ("peer_lost", "peer_timeout"):
        return f"{name} stopped answering before it took over. Try again when it is back."
    return f"{name} did not take over. {error.message}"


def not_followed(name: str, main: str, error: PotluckError) -> str:
    """What the owner of the old main computer reads of a helper that does not follow."""
    if _is_too_old(error):
        return f"{name} runs an older Potluck, which cannot follow {main}. Update it there: then it does."
    return f"{name} does not help {main} yet: {error.message} It is asked again."
