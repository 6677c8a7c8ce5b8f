"""What differs between the answers of two processors."""

from typing import TypedDict


class Answer(TypedDict):
    """The tokens of an answer, what they were chosen from, and their log-probabilities.

    Attributes:
        states: digests of the hidden states that the head multiplies.
        logprobs: as `float.hex` writes them.
    """

    ids: list[int]
    states: list[str]
    logprobs: list[str]


class Answers(TypedDict):
    """What a processor answers, by scheme, cache and how the prompt came."""

    path: str  # of the kernels
    answers: dict[str, Answer]


def compare(processor: str, here: Answers, there: Answers) -> tuple[bool, list[str]]:
    """Compare the answers of an emulated processor with those of this computer.

    Args:
        processor: the path that it has to take.
        here: what this computer answers.
        there: what the emulated processor answers.

    Returns:
        Whether it took its path and all tokens are equal, and a line for each case.
    """
    is_right = there["path"] == processor
    lines = [f"{processor}: takes the path {there['path']}; here it is {here['path']}"]
    for name, mine in here["answers"].items():
        other = there["answers"][name]
        is_equal = mine["ids"] == other["ids"]
        is_right &= is_equal
        lines.append(f"  {name}: {_tokens(mine, other) if not is_equal else _numbers(mine, other)}")
    return is_right, lines


def _tokens(mine: Answer, other: Answer) -> str:
    pairs = zip(mine["ids"], other["ids"], strict=True)
    first = next(index for index, (one, two) in enumerate(pairs) if one != two)
    return f"OTHER TOKENS from the {first + 1}. on"


def _numbers(mine: Answer, other: Answer) -> str:
    pairs = list(zip(mine["logprobs"], other["logprobs"], strict=True))
    largest = max(abs(float.fromhex(one) - float.fromhex(two)) for one, two in pairs)
    states = list(zip(mine["states"], other["states"], strict=True))
    differ = sum(one != two for one, two in states)
    hidden = f"{differ} of {len(states)} hidden states differ" if differ else "equal hidden states"
    return f"equal tokens, {hidden}, log-probabilities differ by up to {largest:.1e}"
