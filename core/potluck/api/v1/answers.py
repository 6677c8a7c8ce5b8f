"""Format the events of one generation as OpenAI's answers, either in chunks or as a whole."""

from abc import ABC, abstractmethod
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from potluck.api.events import (
    CallPiece,
    Candidate,
    ChosenToken,
    Echo,
    Finished,
    Loading,
    Piece,
    Progress,
    Reading,
    Started,
)
from potluck.api.v1.answer_shapes import (
    AssistantMessage,
    CallDelta,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Delta,
    FunctionCall,
    MadeCall,
    PromptTokensDetails,
    TokenLogprob,
    TopLogprob,
    Usage,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The values in every chunk of an answer, and the optional parts that were requested."""

    id: str
    created: int
    model: str
    token_ids: bool
    logprobs: int | None
    index: int = 0  # of the choice, where a request has several


class Format(ABC):
    """One format of answers. Use an instance for one answer: it counts the characters sent."""

    prefix: ClassVar[str]
    _chunk_kind: ClassVar[Callable[..., Struct]]

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._offset = 0  # characters of the tokens whose logprobs were sent
        self._decoder = getincrementaldecoder("utf-8")("replace")  # of these tokens

    @abstractmethod
    def first(self, started: Started) -> Iterator[Struct]: ...

    def piece(self, piece: Piece) -> Iterator[Struct]:
        has_more = piece.text or piece.reasoning or piece.calls
        if has_more or self._answer.token_ids or self._answer.logprobs is not None:
            yield self._chunk(self._part(piece))

    def last(self, finished: Finished, usage: bool) -> Iterator[Struct]:
        """The end of a choice; the measurements come with `usage`, if a client wants that."""
        if usage:
            yield self._chunk(self._end(finished), usage=None)
        else:
            yield self._chunk(self._end(finished), potluck=finished.timings)

    def usage(self, usage: Usage, finished: Finished) -> Struct:
        """The last chunk of all choices, without one."""
        return self._chunk(usage=usage, potluck=finished.timings)

    @abstractmethod
    def whole(self, started: Started, pieces: Sequence[Piece], finished: Finished) -> Struct: ...

    @abstractmethod
    def _part(self, piece: Piece) -> Struct:
        """The choice of a chunk with more text."""

    @abstractmethod
    def _end(self, finished: Finished) -> Struct:
        """The choice of the chunk that says how the answer ended."""

    def _chunk(self, *choices: Struct, **fields: object) -> Struct:
        return self._make(type(self)._chunk_kind, *choices, **fields)

    def _make(self, kind: Callable[..., Struct], *choices: Struct, **fields: object) -> Struct:
        answer = self._answer
        numbered = tuple(replace(choice, index=answer.index) for choice in choices)
        return kind(
            id=answer.id, created=answer.created, model=answer.model, choices=numbered, **fields
        )

    def _prompt_ids(self, started: Started) -> list[int] | UnsetType:
        return list(started.prompt_token_ids) if self._answer.token_ids else UNSET

    def _token_ids(self, pieces: Sequence[Piece]) -> list[int] | UnsetType:
        if not self._answer.token_ids:
            return UNSET
        return [token_id for piece in pieces for token_id in piece.token_ids]


class ChatFormat(Format):
    """The format of `/v1/chat/completions`."""

    prefix = "chatcmpl"
    _chunk_kind = ChatChunk

    def first(self, started: Started) -> Iterator[Struct]:
        choice = ChatChunkChoice(delta=Delta(role="assistant", content=""))
        yield self._chunk(choice, prompt_token_ids=self._prompt_ids(started))

    def whole(self, started: Started, pieces: Sequence[Piece], finished: Finished) -> Struct:
        choice = ChatChoice(
            message=_message(pieces),
            finish_reason=finished.reason,
            logprobs=self._logprobs(pieces),
            token_ids=self._token_ids(pieces),
        )
        return self._make(
            ChatCompletion,
            choice,
            usage=usage_of(started, finished),
            potluck=finished.timings,
            prompt_token_ids=self._prompt_ids(started),
        )

    def _part(self, piece: Piece) -> Struct:
        return ChatChunkChoice(
            delta=_delta(piece),
            logprobs=self._logprobs([piece]),
            token_ids=self._token_ids([piece]),
        )

    def _end(self, finished: Finished) -> Struct:
        return ChatChunkChoice(delta=Delta(), finish_reason=finished.reason)

    def _logprobs(self, pieces: Sequence[Piece]) -> ChatLogprobs | None:
        if self._answer.logprobs is None:
            return None
        tokens = [_chat_logprob(token) for piece in pieces for token in piece.logprobs]
        return ChatLogprobs(content=tokens)


class TextFormat(Format):
    """The format of `/v1/completions`."""

    prefix = "cmpl"
    _chunk_kind = Completion

    def first(self, started: Started) -> Iterator[Struct]:
        if self._answer.token_ids or started.echo is not None:
            choice = CompletionChoice(
                text=_echoed(started),
                logprobs=self._logprobs([], started.echo) if started.echo is not None else None,
                prompt_token_ids=self._prompt_ids(started),
            )
            yield self._chunk(choice)

    def whole(self, started: Started, pieces: Sequence[Piece], finished: Finished) -> Struct:
        choice = CompletionChoice(
            text=_echoed(started) + "".join(piece.text for piece in pieces),
            finish_reason=finished.reason,
            logprobs=self._logprobs(pieces, started.echo),
            token_ids=self._token_ids(pieces),
            prompt_token_ids=self._prompt_ids(started),
        )
        return self._chunk(choice, usage=usage_of(started, finished), potluck=finished.timings)

    def _part(self, piece: Piece) -> Struct:
        return CompletionChoice(
            text=piece.text, logprobs=self._logprobs([piece]), token_ids=self._token_ids([piece])
        )

    def _end(self, finished: Finished) -> Struct:
        return CompletionChoice(text="", finish_reason=finished.reason)

    def _logprobs(
        self, pieces: Sequence[Piece], echo: Echo | None = None
    ) -> CompletionLogprobs | None:
        """Those of these pieces, with those of the prompt before them."""
        if self._answer.logprobs is None:
            return None
        tokens = [*(echo.logprobs if echo else ()), *(t for p in pieces for t in p.logprobs)]
        shown = [token.chosen.token for token in tokens]
        values: list[float | None] = [token.chosen.logprob for token in tokens]
        tops: list[dict[str, float] | None] = [_by_name(token) for token in tokens]
        if echo is not None:  # nothing stands before its first token
            shown.insert(0, echo.first)
            values.insert(0, None)
            tops.insert(0, None)
        offsets: list[int] = []
        for token in shown:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(token))
        return CompletionLogprobs(
            tokens=[_name(token) for token in shown],
            token_logprobs=values,
            top_logprobs=tops if self._answer.logprobs else None,
            text_offset=offsets,
        )


def _echoed(started: Started) -> str:
    return started.echo.text if started.echo is not None else ""


def _message(pieces: Sequence[Piece]) -> AssistantMessage:
    text = "".join(piece.text for piece in pieces)
    reasoning = "".join(piece.reasoning for piece in pieces)
    calls = tuple(
        MadeCall(id=call.id, function=FunctionCall(name=call.name, arguments=call.arguments))
        for call in whole_calls(pieces)
    )
    return AssistantMessage(
        content=text or None if calls else text,
        reasoning_content=reasoning or UNSET,
        tool_calls=calls or UNSET,
    )


def whole_calls(pieces: Sequence[Piece]) -> list[CallPiece]:
    """The calls of an answer, each as one piece."""
    found: dict[int, CallPiece] = {}
    for call in (call for piece in pieces for call in piece.calls):
        before = found.get(call.index)
        if before is not None:
            call = replace(before, arguments=before.arguments + call.arguments)
        found[call.index] = call
    return list(found.values())


def object_of(call: CallPiece) -> str:
    """The arguments of a whole call, as the text of a JSON object also if the answer was cut off inside of them."""
    try:
        msgspec.json.decode(call.arguments, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return msgspec.json.encode({"arguments": call.arguments}).decode()
    return call.arguments


def _delta(piece: Piece) -> Delta:
    if not piece.reasoning and not piece.calls:
        return Delta(content=piece.text)
    calls = tuple(
        CallDelta(
            index=call.index,
            id=call.id or UNSET,
            type="function" if call.id else UNSET,
            function=FunctionCall(name=call.name or UNSET, arguments=call.arguments),
        )
        for call in piece.calls
    )
    return Delta(
        content=piece.text or UNSET,
        reasoning_content=piece.reasoning or UNSET,
        tool_calls=calls or UNSET,
    )


def joined(answers: Sequence[Struct], usage: Usage) -> Struct:
    """One answer with the choices of all."""
    choices = tuple(choice for answer in answers for choice in answer.choices)  # type: ignore[attr-defined]
    return replace(answers[0], choices=choices, usage=usage)


def total(usages: Sequence[Usage], repeats: int) -> Usage:
    """The usage of several answers. So many, one after the other, have a prompt in common: it counts once."""
    prompt = sum(usage.prompt_tokens for usage in usages[::repeats])
    completion = sum(usage.completion_tokens for usage in usages)
    cached = sum(usage.prompt_tokens_details.cached_tokens for usage in usages[::repeats])
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
    )


def progress_text(event: Progress) -> str:
    """What an answer waits for, as the text of a comment."""
    if isinstance(event, Reading):
        return f"reading, {event.tokens} of {event.total} tokens"
    if isinstance(event, Loading):
        return f"loading {event.model}, {event.fraction:.0%}"
    about = "" if event.seconds is None else f", about {max(1, round(event.seconds))} s"
    return f"waiting, place {event.place}{about}"


def usage_of(started: Started, finished: Finished) -> Usage:
    """What one answer took."""
    prompt, completion = len(started.prompt_token_ids), finished.completion_tokens
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=started.cached_tokens),
    )


def _text(candidate: Candidate) -> str:
    return candidate.token.decode(errors="replace")


def _name(token: bytes) -> str:
    r"""A token as the keys of OpenAI's completions have it: its text, or `bytes:\xf0\x9f` if that is no text."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _by_name(token: ChosenToken) -> dict[str, float]:
    """The log-probabilities of the best tokens, each by a name of its own.

    Several tokens may have the same text. The chosen one has it as its name, else the most likely one, and the
    others are `token_id:7`, as vLLM calls them.
    """
    named: dict[str, float] = {}
    for one in token.best:
        name = _name(one.token)
        is_taken = name in named or (
            one.token_id != token.chosen.token_id and one.token == token.chosen.token
        )
        named[f"token_id:{one.token_id}" if is_taken else name] = one.logprob
    return named


def _chat_logprob(token: ChosenToken) -> TokenLogprob:
    chosen = token.chosen
    return TokenLogprob(
        token=_text(chosen),
        logprob=chosen.logprob,
        bytes=list(chosen.token),
        top_logprobs=tuple(
            TopLogprob(token=_text(c), logprob=c.logprob, bytes=list(c.token)) for c in token.best
        ),
    )
