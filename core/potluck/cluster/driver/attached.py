"""A pipeline, and what conversations must know to run on it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.driver.reader import Reader
from potluck.cluster.driver.viewer import Viewer
from potluck.errors import ContextExceededError, PromptError


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens of one conversation a computer's cache can hold."""

    tokens: int
    name: str  # of the computer


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a pipeline is, as planned, by which replicas are compared: seconds of a token of an answer, and of a prompt."""

    token_s: float = 0.1
    prompt_token_s: float = 0.01


_SPEED = Speed()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A pipeline, and what conversations must know to run on it; see `Generator.attach`."""

    pipeline: Pipeline
    context: int
    room: Room | None
    chunk_tokens: Callable[[int], int]
    reader: Reader | None = None  # reads long prompts for it; None: nobody does
    viewer: Viewer | None = None  # reads pictures for it; None: its first stage does
    speed: Speed = _SPEED
    is_leaving: bool = False  # whether it is chosen for no other answers

    def check(self, tokens: Sequence[int]) -> None:
        """Raise PromptError if these tokens and one after them are not possible."""
        count, context, room = len(tokens), self.context, self.room
        if not tokens:
            raise PromptError("The prompt is empty: there is nothing to continue.")
        if count < context:
            return
        needed = f"the prompt and the first token after it take {count + 1}"
        if room is not None:
            raise ContextExceededError(
                f"{needed}: {room.name} has no memory for a longer cache",
                "Shorten it, free memory there, or load the model anew in a smaller scheme.",
                tokens=count,
                context=context,
            )
        raise ContextExceededError(
            needed,
            "Shorten it, start a new conversation, or load the model with a larger context.",
            tokens=count,
            context=context,
        )
