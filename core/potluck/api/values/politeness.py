"""When a computer lends nothing for a while by itself: the rules, and how each is said. Pure.

The rules are the owner's choice. What a look at the computer found is `Facts`; `withdrawal` says what
follows from it.
"""

from math import inf
from typing import Final, Literal, TypeAlias

from msgspec import Struct

Rule: TypeAlias = Literal["games", "battery", "memory", "heat", "activity"]

CALM_S: Final = 60.0  # without a reason, before the computer is lent again
ACTIVE_S: Final = 180.0  # after the last key or movement, its owner is not at the computer any more
LEAST_FREE: Final = 0.05  # of the RAM; what is lent leaves a fifth of it to others


class Rules(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which reasons the owner wants to count. Activity alone is off at first: most computers can do both."""

    games: bool = True
    battery: bool = True
    memory: bool = True
    heat: bool = True
    activity: bool = False


SAYS: Final[dict[Rule, str]] = {
    "games": "is being used for a game or a film",
    "battery": "runs on its battery",
    "memory": "needs its memory for other programs",
    "heat": "is too hot",
    "activity": "is being used by its owner",
}
"""The reasons as the rest of a sentence that begins with the computer's name."""


def says(reason: str | None) -> str | None:
    """Return how another computer's reason is said; None: there is none, or it is not known here."""
    return next((words for rule, words in SAYS.items() if rule == reason), None)


class Facts(Struct, frozen=True, kw_only=True):
    """What was seen of a computer. What cannot be read there has the value of a computer at rest."""

    is_full_screen: bool = False  # a game, or another program that has the screen for itself
    is_on_battery: bool = False
    free_share: float = 1.0  # of the RAM
    is_hot: bool = False
    idle_s: float = inf  # since the last key or movement


class Withdrawal(Struct, frozen=True, kw_only=True):
    """Why a computer lends nothing by itself, and when that reason was seen last (a monotonic time)."""

    rule: Rule
    seen_s: float


def reason(facts: Facts, rules: Rules) -> Rule | None:
    """Return the first reason that counts, the one that its owner notices most."""
    held: dict[Rule, bool] = {
        "games": facts.is_full_screen,
        "battery": facts.is_on_battery,
        "memory": facts.free_share < LEAST_FREE,
        "heat": facts.is_hot,
        "activity": facts.idle_s < ACTIVE_S,
    }
    return next((rule for rule, holds in held.items() if holds and getattr(rules, rule)), None)


def withdrawal(
    before: Withdrawal | None, facts: Facts, rules: Rules, now_s: float
) -> Withdrawal | None:
    """Return what follows from a look: a withdrawal lasts until there was no reason for a minute.

    Args:
        before: what followed from the look before.
        facts: what was seen now.
        rules: that hold now; a rule that was turned off counts no more.
        now_s: monotonic time.
    """
    if (rule := reason(facts, rules)) is not None:
        return Withdrawal(rule=rule, seen_s=now_s)
    if before is None or not getattr(rules, before.rule):
        return None
    return before if now_s - before.seen_s < CALM_S else None
