"""Whether a signed list of releases is today's: it has a date and an end, as the timestamps of TUF have.

Source: The Update Framework, specification 1.0, 5.4 and 1.5.2 (rollback and indefinite freeze attacks). An old list has a good
signature for ever. Who could send it again and again would keep a home on an old version, and nobody would see that.
"""

from datetime import UTC, datetime
from typing import Final

from potluck.errors import IntegrityError

DAY_S: Final = 86_400
LATEST: Final = 253_402_300_799  # the last second that has a date: 9999-12-31
_ASKEW_S: Final = DAY_S  # a clock that is right, of a computer that does not know its time zone


class StaleListError(IntegrityError):
    """A list of releases is signed by the project, and is not the newest one."""

    code = "stale_list"


def check(issued: int, expires: int, *, now: float, seen: int) -> None:
    """Refuse a list of releases that is not to be believed today.

    Args:
        issued: when it was signed, in Unix seconds. Also its number: a newer list has a later one.
        expires: until when it counts, in Unix seconds.
        now: Unix time by this computer's clock.
        seen: when the newest list was signed that this computer has seen; 0: it has seen none.

    Raises:
        StaleListError: it has ended, another one was newer, or the clock is so wrong that nobody can say. The sentence says which.
    """
    if issued < seen:
        told = _time if day(issued) == day(seen) else day
        raise StaleListError(
            f"This list of releases is of {told(issued)}, and this computer has seen one of {told(seen)}. Somebody may hold"
            " the newer one back. It is not used, and nothing was changed. Try again later, or in another network."
        )
    if now < issued - _ASKEW_S:
        raise StaleListError(
            f"By this computer's clock it is {day(now)}, and the list of releases was signed on {day(issued)}. So"
            " nobody can say whether it is the newest. Set the clock, then try again."
        )
    if now > expires:
        raise StaleListError(
            f"This list of releases was good until {day(expires)}, and by this computer's clock it is {day(now)}."
            " Either the clock is wrong, or somebody holds newer lists back, or the makers of Potluck have not renewed"
            " it. It is not used, and nothing was changed. Look at the clock, then try again in another network."
        )


def day(at: float) -> str:
    """A point in time as a date of UTC: `2027-03-31`."""
    return _moment(at).date().isoformat()


def _time(at: float) -> str:
    """A point in time to the second: `2027-03-31 12:00:00 UTC`."""
    return _moment(at).strftime("%Y-%m-%d %H:%M:%S UTC")


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(min(max(at, 0), LATEST), UTC)
