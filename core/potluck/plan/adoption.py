"""Decide when a better plan is worth the change.

A plan in use is only replaced by one that is clearly faster, and that saves more time on the tokens
still to be generated than moving its weights takes.
"""

from potluck.plan.stages import Plan

MIN_GAIN = 0.15  # measurements of one machine differ by some 10 % from minute to minute
EXPECTED_TOKENS = 2000  # a few long answers


def is_better(
    new: Plan,
    old: Plan,
    moved_bytes: int = 0,
    *,
    bytes_per_s: float = 1.0,
    tokens: int = EXPECTED_TOKENS,
) -> bool:
    """Whether to change from one plan to another, both made from the same measurements.

    `moved_bytes` are the weights that some computer lacks for the new plan, and `bytes_per_s` the
    rate at which they come; `tokens` are expected to be generated before the plan changes again.
    """
    old_ms, new_ms = 1000 / old.users_tokens_per_s, 1000 / new.users_tokens_per_s
    gain_ms = old_ms - new_ms
    if gain_ms <= MIN_GAIN * old_ms:
        return False
    return moved_bytes <= 0 or gain_ms * tokens > 1000 * moved_bytes / bytes_per_s
