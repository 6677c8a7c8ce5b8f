"""Which replica of the model a prompt is answered on, as a pure function.

An answer is soonest where its prompt is computed first and its tokens come fastest. A replica that has the beginning
of the prompt in its caches has less to compute; one that answers others already gives each of them fewer tokens. Both
are times, so that the one is weighed against the other: a conversation stays where its caches are, unless to compute
it elsewhere takes less than to wait there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

USUAL_ANSWER = 256  # tokens, as in `plan/apart.py`


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One replica, as a prompt would find it.

    Attributes:
        token_s: seconds of a token of one answer alone.
        prompt_token_s: seconds of a token of a prompt.
        stages: so many answers at once do not slow each other down.
        answers: that are under way there, or wait.
        tokens_ahead: of theirs, that are not computed yet; without those that come from elsewhere.
        cached: tokens at the beginning of the new prompt that need not be computed there, or are on their way.
    """

    token_s: float
    prompt_token_s: float
    stages: int = 1
    answers: int = 0
    tokens_ahead: int = 0
    cached: int = 0


def seconds(load: Load, tokens: int) -> float:
    """How long a usual answer to a prompt of so many tokens takes on a replica."""
    to_compute = load.tokens_ahead + max(0, tokens - load.cached)
    beside_others = 1 + load.answers / max(1, load.stages)
    return to_compute * load.prompt_token_s + USUAL_ANSWER * load.token_s * beside_others


def route(loads: Sequence[Load], tokens: int) -> int:
    """The replica that answers a prompt of so many tokens soonest; of equal ones the first with the fewest answers."""
    return min(range(len(loads)), key=lambda k: (seconds(loads[k], tokens), loads[k].answers, k))
