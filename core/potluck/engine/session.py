"""A session of a stage, what a step of it brings, and what comes out of it."""

from dataclasses import dataclass, field
from typing import NamedTuple

from potluck.engine.caches.session_cache import SessionCache
from potluck.engine.payload import Activations
from potluck.engine.sampling.sampler import Choice
from potluck.errors import NeedReplayError
from potluck.ids import SessionId
from potluck.wire.activation_messages import PictureRows, Sampling, Scoring


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The result of a step: hidden states for the next stage, or a token from the head."""

    position: int  # where the session's cache ends now
    hidden: Activations | None = None  # (T, D), in the compute dtype; None from the head
    choice: Choice | None = None  # None also if no token was asked for
    accepted: tuple[Choice, ...] = ()  # before it: the step's drafts that were chosen
    scores: tuple[Choice, ...] = ()  # the targets of `StepTokens.scoring`
    embedding: bytes = b""  # of the last token, (D,) in f32, if `Sampling.embeds`


class StepTokens(NamedTuple):
    """The tokens of a session's step. `Stage.forward` describes them."""

    session: SessionId
    inputs: Activations
    epoch: int
    step: int
    position: int
    sampling: Sampling | None
    prompt_end: int | None = None
    scoring: Scoring | None = None
    ids: Activations | None = None  # (T,), I32, beside hidden states, for layers that look at them
    pictures: tuple[PictureRows, ...] = ()
    lag: int = 0  # see `StepPictures`
    places: Activations | None = (
        None  # (3, T), I32, rope's positions in place of those with the lag
    )
    drafts: tuple[int, ...] = ()  # see `Forward`

    @property
    def is_choice_alone(self) -> bool:
        """Whether nothing is wanted of the head but a token."""
        return self.scoring is None and not (self.sampling is not None and self.sampling.embeds)

    @property
    def is_text(self) -> bool:
        """Whether it has no rows of a picture."""
        return not self.pictures and self.places is None

    @property
    def length(self) -> int:
        return self.inputs.shape[0] if self.inputs.shape else 0

    @property
    def end(self) -> int:
        return self.position + self.length

    @property
    def identity(self) -> tuple[int, int, int]:
        """What a repeated step has in common with the one before: step, position, tokens."""
        return self.step, self.position, self.length


@dataclass(slots=True)
class Session:
    """A session that a stage knows."""

    cache: SessionCache
    last: tuple[int, int, int] | None = None  # (step, position, tokens) of the step done last
    output: Output | None = None  # of that step; None: it is not kept
    history: list[int] = field(default_factory=list[int])  # that penalties look at
    drafts: int = (
        0  # so many of the last tokens are guesses, which a later stage may not have accepted
    )


def need_replay(cached: int, position: int) -> NeedReplayError:
    """The error of a step at a position other than the one where the cache ends."""
    return NeedReplayError(
        f"The step assumes {position} cached tokens, and {cached} are cached here: send the"
        f" conversation again from position {cached}.",
        position=cached,
    )
