"""What a request gets from a generator: its tokens, and what it took from the caches."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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


@dataclass(slots=True, kw_only=True)
class Usage:
    """What a request took from the caches; filled in before its first token."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    scores: Mapping[int, TokenScore] = field(default_factory=dict[int, TokenScore])
    """Of the prompt's tokens, by their positions, if they were asked for."""


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
