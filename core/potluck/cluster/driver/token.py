"""What a request gets from a generator: its tokens, and what it took from the caches."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from potluck.errors import EngineError
from potluck.wire.activation_messages import Result, TokenLogprob, TokenScore


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token as the last stage chose it, with how long it took."""

    token_id: int
    logprob: float | None
    top: tuple[TokenLogprob, ...]
    seconds: float  # since the step was sent
    compute_ms: tuple[float, ...]  # of each stage, in order
    embedding: bytes = b""  # of the token before it, (D,) in f32, if `Sampling.embeds`
    is_guessed: bool = False  # whether it was sent as a guess before it was chosen


@dataclass(slots=True, kw_only=True)
class Usage:
    """What a request took from the caches; filled in before its first token."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    scores: Mapping[int, TokenScore] = field(default_factory=dict[int, TokenScore])
    """Of the prompt's tokens, by their positions, if they were asked for."""


def tokens_of(result: Result, seconds: float) -> list[Token]:
    """The tokens of a step, `seconds` after it was sent. Its time is shared by them.

    Raises:
        EngineError: the last stage chose none.
    """
    last, count = token_of(result, seconds), 1 + len(result.accepted)
    if count == 1:
        return [last]
    share = {
        "seconds": seconds / count,
        "compute_ms": tuple(ms / count for ms in result.compute_ms),
    }
    guessed = [
        Token(token_id=one.token_id, logprob=one.logprob, top=one.top, is_guessed=True, **share)
        for one in result.accepted
    ]
    return [*guessed, replace(last, **share)]


def token_of(result: Result, seconds: float) -> Token:
    """The token of a step, `seconds` after it was sent.

    Raises:
        EngineError: the last stage chose none.
    """
    if result.token_id is None:
        raise EngineError(
            "The last computer of the pipeline answered without a token. Its Potluck may be damaged or"
            " altered: leave it out, or install it again."
        )
    return Token(
        token_id=result.token_id,
        logprob=result.logprob,
        top=result.top,
        seconds=seconds,
        compute_ms=result.compute_ms,
        embedding=result.embedding,
    )
