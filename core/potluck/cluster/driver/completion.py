"""Answer one request with the loaded model: text to tokens, tokens to text, and the timings."""

import secrets
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, closing, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from potluck.api.backend import (
    Candidate,
    ChatPrompt,
    ChosenToken,
    Constraint,
    Finished,
    GenerationEvent,
    GenerationRequest,
    Piece,
    Prompt,
    SamplingOptions,
    Started,
    TextPrompt,
    TokenPrompt,
    Tokens,
)
from potluck.api.openai import StageTiming, Timings
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.grammar import Grammar
from potluck.cluster.driver.token import Token, Usage
from potluck.errors import ContextExceededError, EngineError, PromptError
from potluck.model.defaults import GenerationDefaults
from potluck.model.detokenizer import Detokenizer, StopStrings, Vocabulary
from potluck.wire.activation_messages import Sampling, TokenBias

# Characters of a prompt for each token of the context. Ordinary text has about four to a token, and
# vocabularies have tokens of long runs of spaces. What is longer cannot fit, and is not tokenized.
CHARACTERS_PER_TOKEN = 32


class ModelText(Protocol):
    """How a model reads and writes: `ChatFormat`, in a process of its own; and grammars, in another."""

    vocabulary: Vocabulary
    stop_ids: frozenset[int]
    stop_strings: tuple[str, ...]

    async def encode(self, text: str) -> list[int]: ...
    async def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]: ...
    async def constrain(self, constraint: Constraint, vocab_size: int) -> Grammar: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that is loaded and can answer.

    Attributes:
        text: its tokenizer and its chat template.
        defaults: sampling that its makers recommend.
        generator: computes its tokens.
        stage_names: the computer of each stage, in the order of the pipeline.
        vocab_size: how many token ids its weights know; a tokenizer may know others.
    """

    text: ModelText
    defaults: GenerationDefaults
    generator: Generator
    stage_names: tuple[str, ...]
    vocab_size: int


@dataclass(slots=True)
class _Stopwatch:
    """The tokens of an answer, and when its first one came, in seconds of `now`."""

    now: Callable[[], float]
    started: float
    first: float | None = None
    tokens: list[Token] = field(default_factory=list[Token])

    def add(self, token: Token) -> None:
        if self.first is None:
            self.first = self.now()
        self.tokens.append(token)

    def timings(self, usage: Usage, stage_names: Sequence[str]) -> Timings:
        """Medians over the tokens after the first, whose time is that of the prompt."""
        first = self.first if self.first is not None else self.now()
        decoded = self.tokens[1:]
        seconds = sum(token.seconds for token in decoded)
        steps = [token for token in decoded if len(token.compute_ms) == len(stage_names)]
        stages = tuple(
            StageTiming(
                node=name, compute_ms=statistics.median(token.compute_ms[i] for token in steps)
            )
            for i, name in enumerate(stage_names)
            if steps
        )
        hops = [1000 * token.seconds - sum(token.compute_ms) for token in steps]
        return Timings(
            time_to_first_token_s=first - self.started,
            tokens_per_s=len(decoded) / seconds if seconds else 0.0,
            prefill_tokens=usage.prompt_tokens - usage.cached_tokens,
            cached_tokens=usage.cached_tokens,
            stages=stages,
            hop_ms=statistics.median(hops) if hops else None,
        )


async def complete(
    loaded: LoadedModel,
    request: GenerationRequest,
    *,
    now: Callable[[], float] = time.perf_counter,
) -> AsyncGenerator[GenerationEvent, None]:
    """Yield `Started`, pieces of the answer's text, and `Finished`; before and between, what it waits for.

    Of an answer that goes on after `known` tokens, only what follows them is yielded.

    Closing the iterator ends the answer, and the steps under way are the last.

    Args:
        loaded: the model.
        request: what to answer, and how.
        now: clock of the timings, in seconds.

    Raises:
        PromptError: the prompt is empty, too long, or not of this model's vocabulary; or the known
            tokens are.
        GrammarError: the constraint is invalid, or costs too much.
        PeerError, EngineError: the pipeline broke; the message names the computer.
    """
    watch = _Stopwatch(now, now())
    prompt = await _encode(loaded, request.prompt)
    _check_ids(request.known, loaded.vocab_size)
    _check_ids([token_id for token_id, _ in request.sampling.logit_bias], loaded.vocab_size)
    _check_known(request.known, loaded.generator.context)
    grammar = None
    if request.constraint is not None:
        grammar = await loaded.text.constrain(request.constraint, loaded.vocab_size)
    with closing(grammar) if grammar is not None else nullcontext():
        async with aclosing(_answer(loaded, request, prompt, grammar, watch)) as events:
            async for event in events:
                yield event


async def _answer(
    loaded: LoadedModel,
    request: GenerationRequest,
    prompt: list[int],
    grammar: Grammar | None,
    watch: _Stopwatch,
) -> AsyncGenerator[GenerationEvent, None]:
    """Yield the events of `complete`."""
    sampling = _sampling(request.sampling, loaded.defaults, len(prompt))
    if request.max_tokens == 0:
        yield Started(prompt_token_ids=tuple(prompt))
        yield Finished(
            reason="length", completion_tokens=0, timings=watch.timings(Usage(), loaded.stage_names)
        )
        return
    usage = Usage()
    text = _Text(loaded.text, request)
    is_over = any(text.push(token_id)[1] for token_id in request.known)
    if grammar is not None and not is_over and request.known:
        try:
            await grammar.push(request.known)
        except EngineError:
            raise PromptError("The known tokens do not follow the grammar of the answer.") from None
        is_over = grammar.is_over
    stream = loaded.generator.answer(
        prompt,
        sampling,
        limit=0 if is_over else request.max_tokens,
        usage=usage,
        stops=() if request.ignore_eos else loaded.text.stop_ids,
        known=request.known,
        grammar=None if is_over else grammar,
    )
    async with aclosing(stream):
        async for token in stream:
            if not isinstance(token, Token):
                yield token
                continue
            _check_token(token, loaded.vocab_size)
            watch.add(token)
            if len(watch.tokens) == 1:
                yield Started(prompt_token_ids=tuple(prompt), cached_tokens=usage.cached_tokens)
            piece, is_over = text.add(token)
            yield piece
            if is_over:
                break
    if not watch.tokens:  # the known tokens are the whole answer
        yield Started(prompt_token_ids=tuple(prompt), cached_tokens=usage.cached_tokens)
    if (rest := text.finish()) is not None:
        yield rest
    is_over = is_over or (grammar is not None and grammar.is_over)
    yield Finished(
        reason="stop" if is_over else "length",
        completion_tokens=len(request.known) + len(watch.tokens),
        timings=watch.timings(usage, loaded.stage_names),
    )


async def tokens_of(loaded: LoadedModel, prompt: Prompt) -> Tokens:
    """A prompt as the model reads it.

    Raises:
        PromptError: as `complete`.
    """
    ids = await _encode(loaded, prompt)
    vocabulary = loaded.text.vocabulary
    detokenizer = Detokenizer(vocabulary)
    text = "".join([*map(detokenizer.push, ids), detokenizer.flush()])
    pieces = tuple(vocabulary.raw(token_id) or b"" for token_id in ids)
    context = loaded.generator.context
    return Tokens(token_ids=tuple(ids), pieces=pieces, text=text, context=context)


async def _encode(loaded: LoadedModel, prompt: Prompt) -> list[int]:
    """Token ids of a prompt.

    Raises:
        PromptError: its text is far too long, or the model does not know one of its token ids.
    """
    match prompt:
        case ChatPrompt(turns):
            _check_length(sum(len(turn.content) for turn in turns), loaded.generator.context)
            messages = [{"role": turn.role, "content": turn.content} for turn in turns]
            ids = await loaded.text.encode_chat(messages)
        case TextPrompt(text):
            _check_length(len(text), loaded.generator.context)
            ids = await loaded.text.encode(text)
        case TokenPrompt(token_ids):
            ids = list(token_ids)
    _check_ids(ids, loaded.vocab_size)
    return ids


def _check_ids(ids: Sequence[int], vocab_size: int) -> None:
    """Raise PromptError for a token id of a client that the model does not have."""
    if ids and max(ids) >= vocab_size:
        raise PromptError(
            f"Token id {max(ids)} is not of this model: its vocabulary has {vocab_size} tokens.",
            token_id=max(ids),
        )


def _check_known(known: Sequence[int], context: int) -> None:
    """Raise ContextExceededError for more tokens than the context holds. 0: the context is not known."""
    if context and len(known) > context:
        raise ContextExceededError(
            f"{len(known)} tokens of the answer are said to be known",
            "Send those of this answer alone.",
            context=context,
        )


def _check_token(token: Token, vocab_size: int) -> None:
    """Raise EngineError for a token that the model does not have: a worker made it up."""
    if token.token_id >= vocab_size:
        raise EngineError(
            f"The last computer of the pipeline answered with token {token.token_id}, and the model"
            f" has {vocab_size}. Its Potluck may be damaged or altered: leave it out, or install it"
            " again."
        )


def _check_length(characters: int, context: int) -> None:
    """Raise ContextExceededError for a text that cannot fit the context. 0: the context is not known."""
    if context and characters > CHARACTERS_PER_TOKEN * context:
        raise ContextExceededError(
            f"the prompt has {characters:,} characters; a token is some four of them",
            "Shorten it, or load the model with a larger context.",
            characters=characters,
            context=context,
        )


def _sampling(
    options: SamplingOptions, defaults: GenerationDefaults, prompt_tokens: int = 0
) -> Sampling:
    """What the request asks for, else what the model recommends, else the whole distribution."""
    counts = options.presence_penalty or options.frequency_penalty

    def choose(asked: float | None, recommended: float | None, neutral: float) -> float:
        return next(value for value in (asked, recommended, neutral) if value is not None)

    return Sampling(
        temperature=choose(options.temperature, defaults.temperature, 1.0),
        top_k=int(choose(options.top_k, defaults.top_k, 0)),
        top_p=choose(options.top_p, defaults.top_p, 1.0),
        min_p=choose(options.min_p, defaults.min_p, 0.0),
        repetition_penalty=choose(options.repetition_penalty, defaults.repetition_penalty, 1.0),
        seed=secrets.randbits(63) if options.seed is None else options.seed,
        logprobs=options.logprobs,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        answer_start=prompt_tokens if counts else 0,
        logit_bias=tuple(TokenBias(*item) for item in options.logit_bias),
    )


class _Text:
    """Turns tokens into text that may be shown: whole characters, and nothing of a stop string."""

    def __init__(self, text: ModelText, request: GenerationRequest) -> None:
        self._model = text
        self._request = request
        self._detokenizer = Detokenizer(text.vocabulary)
        template_stops = text.stop_strings if isinstance(request.prompt, ChatPrompt) else ()
        self._stop = StopStrings((*request.stop, *template_stops))
        self._is_stopped = False

    def add(self, token: Token) -> tuple[Piece, bool]:
        """Return what the token adds to the answer, and whether the answer ends with it."""
        text, is_over = self.push(token.token_id)
        return self._piece(text, token), is_over

    def push(self, token_id: int) -> tuple[str, bool]:
        """The same for a token whose text may be known already."""
        if token_id in self._model.stop_ids and not self._request.ignore_eos:
            return "", True
        text = self._stop.push(self._detokenizer.push(token_id))
        self._is_stopped = self._stop.hit is not None
        return text, self._is_stopped

    def finish(self) -> Piece | None:
        """Return the text that was held back and belongs to the answer after all; None: none."""
        if self._is_stopped:
            return None
        text = self._stop.push(self._detokenizer.flush()) + self._stop.flush()
        return Piece(text=text, token_ids=()) if text else None

    def _piece(self, text: str, token: Token) -> Piece:
        logprobs: tuple[ChosenToken, ...] = ()
        if token.logprob is not None:
            chosen = self._candidate(token.token_id, token.logprob)
            best = tuple(self._candidate(other.token_id, other.logprob) for other in token.top)
            logprobs = (ChosenToken(chosen=chosen, best=best),)
        return Piece(text=text, token_ids=(token.token_id,), logprobs=logprobs)

    def _candidate(self, token_id: int, logprob: float) -> Candidate:
        token = self._model.vocabulary.raw(token_id) or b""
        return Candidate(token_id=token_id, token=token, logprob=logprob)
