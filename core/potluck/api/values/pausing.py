"""How long a pause lasts, and how its end is said. Pure."""

from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

PauseLength: TypeAlias = Literal["hour", "tomorrow", "resume"]
"""For an hour, until tomorrow morning, until the owner resumes."""

HOUR_S: Final = 3600.0
_MORNING = 6  # o'clock: "until tomorrow" ends before anybody is at work


def pause_end(length: PauseLength, now: datetime) -> float | None:
    """Return the Unix time at which a pause that begins now ends; None: its owner ends it.

    Args:
        length: of the pause.
        now: with a time zone, in which the morning is meant.
    """
    match length:
        case "hour":
            return now.timestamp() + HOUR_S
        case "tomorrow":
            morning = now.replace(hour=_MORNING, minute=0, second=0, microsecond=0)
            return (morning if now < morning else morning + timedelta(days=1)).timestamp()
        case "resume":
            return None


def shown_end(until: float, now: datetime) -> str:
    """Return a Unix time for people: `18:30`, `tomorrow, 06:00`, `2026-11-30, 06:00`.

    Args:
        until: the time.
        now: with the time zone in which it is shown.
    """
    end = datetime.fromtimestamp(until, now.tzinfo)
    days = (end.date() - now.date()).days
    day = {0: "", 1: "tomorrow, "}.get(days, f"{end:%Y-%m-%d}, ")
    return f"{day}{end:%H:%M}"


def here() -> datetime:
    """Return the present time in the time zone of this computer."""
    return datetime.now().astimezone()


def paused_line(until: float | None) -> str:
    """Return what a pause is called now: `Paused until 18:30`, or `Paused`."""
    return "Paused" if until is None else f"Paused until {shown_end(until, here())}"
