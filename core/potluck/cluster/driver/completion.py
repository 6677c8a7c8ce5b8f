"""Answer one request with the loaded model: text to tokens, tokens to text, and the timings."""

import logging
import secrets
import statistics
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, closing, nullcontext
from dataclasses import dataclass, field

from msgspec.structs import replace

from potluck.api.events import Finished, GenerationEvent, Started, Tokens
from potluck.api.prompts import (
    ChatPrompt,
    GenerationRequest,
    Prompt,
    SamplingOptions,
    TextPrompt,
    TokenPrompt,
)
from potluck.api.values.timings import StageTiming, Timings
from potluck.cluster.driver.answer_text import AnswerText
from potluck.cluster.driver.calling import answer_constraint
from potluck.cluster.driver.echo import echo_of
from potluck.cluster.driver.grammar import Grammar
from potluck.cluster.driver.loaded_model import LoadedModel
from potluck.cluster.driver.model_text import EncodedPrompt, conversation_of
from potluck.cluster.driver.pictures import NO_PICTURES, Pictures, PromptPictures
from potluck.cluster.driver.token import Token, Usage
from potluck.errors import (
    ContextExceededError,
    EngineError,
    GrammarError,
    PromptError,
)
from potluck.model.defaults import GenerationDefaults
from potluck.model.text.detokenizer import Detokenizer
from potluck.wire.activation_messages import Sampling, TokenBias

logger = logging.getLogger(__name__)

# Characters of a prompt for each token of the context. Ordinary text has about four to a token, and
# vocabularies have tokens of long runs of spaces. What is longer cannot fit, and is not tokenized.
CHARACTERS_PER_TOKEN = 32
_ONLY_TEXT = (
    "This model reads only text here, and a message has a picture. Leave it out, or ask a model whose vision tower"
    " Potluck computes, as safetensors or as GGUF with its mmproj beside it: README.md names them."
)


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
            guessed_tokens=sum(token.is_guessed for token in self.tokens),
            stages=stages,
            hop_ms=statistics.median(hops) if hops else None,
        )


async def complete(
    loaded: LoadedModel,
    request: GenerationRequest,
    *,
    now: Callable[[], float] = time.perf_counter,
) -> AsyncGenerator[GenerationEvent, None]:
    """Yield `Started`, pieces of the answer's text, and `Finished`. Events that say what it waits for come before and between.

    Of an answer that goes on after `known` tokens, only what follows them is yielded.

    Closing the iterator ends the answer: no step is begun after that.

    Args:
        loaded: the model.
        request: what to answer, and how.
        now: clock of the timings, in seconds.

    Raises:
        PromptError: the prompt is empty, too long, or not of this model's vocabulary; or the known
            tokens are.
        TooManyRequestsError: there was no room for its pictures.
        GrammarError: the constraint is invalid, or costs too much.
        PeerError, EngineError: the pipeline broke; the message names the computer.
    """
    watch = _Stopwatch(now, now())
    async with _encoded(loaded, request.prompt) as encoded:
        _check_ids(request.known, loaded.vocab_size)
        _check_ids([token_id for token_id, _ in request.sampling.logit_bias], loaded.vocab_size)
        _check_known(request.known, loaded.generator.context)
        grammar = await _grammar(loaded, request, encoded)
        with closing(grammar) if grammar is not None else nullcontext():
            async with aclosing(_answer(loaded, request, encoded, grammar, watch)) as events:
                async for event in events:
                    yield event


async def _grammar(
    loaded: LoadedModel, request: GenerationRequest, encoded: EncodedPrompt
) -> Grammar | None:
    """The grammar of an answer; None: it may be anything.

    Raises:
        PromptError, GrammarError: as `complete`.
    """
    constraint = answer_constraint(loaded.text, request, encoded)
    if constraint is None:
        return None
    try:
        return await loaded.text.constrain(constraint, loaded.vocab_size)
    except GrammarError:
        if not constraint.is_optional:
            raise
        logger.info("calls are not limited: the schemas of the tools are not understood")
        return None


async def _answer(
    loaded: LoadedModel,
    request: GenerationRequest,
    encoded: EncodedPrompt,
    grammar: Grammar | None,
    watch: _Stopwatch,
) -> AsyncGenerator[GenerationEvent, None]:
    """Yield the events of `complete`."""
    prompt = encoded.token_ids
    sampling = _sampling(request.sampling, loaded.defaults, len(prompt))
    if request.embeds:
        loaded.check_embeds()
        sampling = replace(sampling, embeds=True)
    is_scored = request.echo and sampling.logprobs is not None
    if request.max_tokens == 0 and not (is_scored or request.embeds):
        yield _started(loaded, request, prompt, Usage())
        yield Finished(
            reason="length", completion_tokens=0, timings=watch.timings(Usage(), loaded.stage_names)
        )
        return
    usage = Usage()
    text = AnswerText(loaded.text, request, encoded)
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
        limit=0 if is_over else 1 if request.max_tokens == 0 else request.max_tokens,
        usage=usage,
        stops=() if request.ignore_eos else loaded.text.stop_ids,
        known=request.known,
        grammar=None if is_over else grammar,
        is_scored=is_scored,
        is_kept=not request.embeds,
        pictures=_pictures(loaded, encoded),
    )
    embedding = b""
    async with aclosing(stream):
        async for token in stream:
            if not isinstance(token, Token):
                yield token
                continue
            _check_token(token, loaded.vocab_size)
            embedding = token.embedding
            if request.max_tokens == 0:  # it was computed for what is said of the prompt
                break
            watch.add(token)
            if len(watch.tokens) == 1:
                yield _started(loaded, request, prompt, usage)
            piece, is_over = text.add(token)
            yield piece
            if is_over:
                break
    if not watch.tokens:  # the known tokens are the whole answer, or there is none
        yield replace(_started(loaded, request, prompt, usage), embedding=embedding)
    if (rest := text.finish()) is not None:
        yield rest
    is_over = is_over or (grammar is not None and grammar.is_over)
    reason = "tool_calls" if text.calls else "stop"
    yield Finished(
        reason=reason if is_over else "length",
        completion_tokens=len(request.known) + len(watch.tokens),
        timings=watch.timings(usage, loaded.stage_names),
        stop_text=text.stop_text,
    )


def _started(
    loaded: LoadedModel, request: GenerationRequest, prompt: Sequence[int], usage: Usage
) -> Started:
    """The first event of an answer, with its prompt if that was requested."""
    return Started(
        prompt_token_ids=tuple(prompt),
        cached_tokens=usage.cached_tokens,
        echo=echo_of(loaded.text.vocabulary, request.prompt, prompt, usage.scores)
        if request.echo
        else None,
    )


async def tokens_of(loaded: LoadedModel, prompt: Prompt) -> Tokens:
    """A prompt as the model reads it.

    Raises:
        PromptError: as `complete`.
    """
    async with _encoded(loaded, prompt) as encoded:
        ids = encoded.token_ids
    vocabulary = loaded.text.vocabulary
    detokenizer = Detokenizer(vocabulary)
    text = "".join([*map(detokenizer.push, ids), detokenizer.flush()])
    pieces = tuple(vocabulary.raw(token_id) or b"" for token_id in ids)
    context = loaded.generator.context
    return Tokens(token_ids=tuple(ids), pieces=pieces, text=text, context=context)


@asynccontextmanager
async def _encoded(loaded: LoadedModel, prompt: Prompt) -> AsyncIterator[EncodedPrompt]:
    """A prompt as token ids, with the room of its pixels as long as the `with` block lasts.

    Raises:
        PromptError: as `_encode`.
        TooManyRequestsError: there was no room.
    """
    if not isinstance(prompt, ChatPrompt) or not any(turn.pictures for turn in prompt.turns):
        yield await _encode(loaded, prompt)
        return
    _check_sees(loaded, prompt)
    async with loaded.pixels.held() as keep:
        encoded = await _encode(loaded, prompt)
        keep(sum(len(picture.pixels) for picture in encoded.pictures))
        yield encoded


async def _encode(loaded: LoadedModel, prompt: Prompt) -> EncodedPrompt:
    """Token ids of a prompt.

    Raises:
        PromptError: its text is far too long, or the model does not know one of its token ids.
    """
    match prompt:
        case ChatPrompt():
            _check_length(_characters(prompt), loaded.generator.context)
            encoded = await loaded.text.encode_chat(conversation_of(prompt))
        case TextPrompt(text, _, suffix) if suffix:
            _check_length(len(text) + len(suffix), loaded.generator.context)
            encoded = EncodedPrompt(token_ids=await loaded.text.encode_fill(text, suffix))
        case TextPrompt(text, special):
            _check_length(len(text), loaded.generator.context)
            encoded = EncodedPrompt(token_ids=await loaded.text.encode(text, add_special=special))
        case TokenPrompt(token_ids):
            encoded = EncodedPrompt(token_ids=list(token_ids))
    _check_ids(encoded.token_ids, loaded.vocab_size)
    return encoded


def _check_sees(loaded: LoadedModel, prompt: ChatPrompt) -> None:
    """Raise PromptError for pictures that the model cannot read."""
    if loaded.tower is None and any(turn.pictures for turn in prompt.turns):
        raise PromptError(_ONLY_TEXT if loaded.blind is None else f"{loaded.blind} {_ONLY_TEXT}")


def _pictures(loaded: LoadedModel, encoded: EncodedPrompt) -> Pictures:
    if not encoded.pictures or loaded.tower is None:
        return NO_PICTURES
    return PromptPictures.of(
        encoded.token_ids, encoded.pictures, encoded.picture_token, loaded.tower
    )


def _characters(prompt: ChatPrompt) -> int:
    """How long the text of a conversation is, about."""
    calls = sum(len(call.arguments) for turn in prompt.turns for call in turn.calls)
    tools = () if prompt.tool_use is None else prompt.tool_use.tools
    offered = sum(len(tool.description) + len(tool.parameters) for tool in tools)
    return sum(len(turn.content) + len(turn.reasoning) for turn in prompt.turns) + calls + offered


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
