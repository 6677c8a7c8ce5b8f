"""What became of an answer: it equals the undisturbed one, it ended with a clear error, or it is lost."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["equal", "error", "lost"]
LONGEST_MESSAGE = 600
# Words that no owner of a computer should read: they come from Python, not from Potluck.
TECHNICAL = ("Traceback", "Error:", "Exception", "errno", "0x", "object at")


@dataclass(slots=True)
class Answer:
    """What a client saw of one answer. Times are those of the monotonic clock, in seconds."""

    asked_at: float
    ids: list[int] = field(default_factory=list[int])
    times: list[float] = field(default_factory=list[float])  # of the events that brought tokens
    told: list[float] = field(
        default_factory=list[float]
    )  # of those that named its place in the queue
    text: str = ""
    error: str | None = None  # the message of an error in the API's form
    code: str | None = None
    done: bool = False  # `[DONE]` came
    ended_at: float | None = None
    given_up: bool = False  # the harness closed the connection: nothing had come for too long

    @property
    def is_queued(self) -> bool:
        """Whether it waits for its turn: before its first token, or as it was told since the last one."""
        return not self.times or (bool(self.told) and self.told[-1] > self.times[-1])

    @property
    def is_cut_off(self) -> bool:
        """Whether its connection ended, or has brought neither its end nor an error so far."""
        return not (self.done or self.error is not None or self.given_up)

    @property
    def last_at(self) -> float:
        """When anything came last; at first, when it was asked."""
        return max([self.asked_at, *self.times[-1:], *self.told[-1:]])


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and why."""

    verdict: Verdict
    why: str = ""


def judge(answer: Answer, undisturbed: Answer) -> Judgement:
    """Compare an answer with the one to the same question that nothing disturbed."""
    if answer.given_up:
        return Judgement("lost", f"silence after {len(answer.ids)} tokens")
    beginning = undisturbed.ids[: len(answer.ids)]
    if answer.ids != beginning:
        return Judgement(
            "lost", f"another token than undisturbed, at {_same(answer.ids, beginning)}"
        )
    if answer.error is not None:
        return judge_error(answer.error, answer.code)
    if answer.is_cut_off:
        return Judgement("lost", f"a bare end after {len(answer.ids)} tokens")
    if (answer.ids, answer.text) != (undisturbed.ids, undisturbed.text):
        return Judgement("lost", f"ended after {len(answer.ids)} tokens as if it were whole")
    return Judgement("equal")


def _same(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens both begin with."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def judge_error(message: str, code: str | None) -> Judgement:
    """Say whether an error is one for people: a sentence, with a code, without words of Python."""
    is_sentence = message.endswith((".", "!", "?")) and len(message) <= LONGEST_MESSAGE
    if not code or not is_sentence or any(word in message for word in TECHNICAL):
        return Judgement("lost", f"an unclear error ({code}): {message}")
    return Judgement("error", message)


def stall_s(answer: Answer, fault_at: float) -> float | None:
    """Return how long the fault stopped the answer: its longest wait for a token after the fault.

    The first of these waits counts from the fault, also if the answer was asked for later, since it
    waited for a load. A wait ends when the client is told that others have their turn first.
    None: no token came after the fault, or the answer ended early.
    """
    after = [at for at in answer.times if at > fault_at]
    if not answer.done or not after:
        return None
    return max(
        min([now, *(at for at in answer.told if before < at < now)]) - before
        for before, now in pairwise((fault_at, *after))
    )


def worst(judgements: Sequence[Judgement]) -> Judgement:
    """Return the judgement of a whole run: that of its worst answer."""
    order: dict[Verdict, int] = {"lost": 0, "error": 1, "equal": 2}
    return min(judgements, key=lambda one: order[one.verdict])
