"""Format the events of one generation as OpenAI's answers, either in chunks or as a whole."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from potluck.api import openai
from potluck.api.backend import Candidate, ChosenToken, Finished, Piece, Started


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

    @abstractmethod
    def first(self, started: Started) -> Iterator[Struct]: ...

    def piece(self, piece: Piece) -> Iterator[Struct]:
        if piece.text or self._answer.token_ids or self._answer.logprobs is not None:
            yield self._chunk(self._part(piece))

    def last(self, finished: Finished, usage: bool) -> Iterator[Struct]:
        """The end of a choice; the measurements come with `usage`, if a client wants that."""
        if usage:
            yield self._chunk(self._end(finished), usage=None)
        else:
            yield self._chunk(self._end(finished), potluck=finished.timings)

    def usage(self, usage: openai.Usage, finished: Finished) -> Struct:
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
    _chunk_kind = openai.ChatChunk

    def first(self, started: Started) -> Iterator[Struct]:
        choice = openai.ChatChunkChoice(delta=openai.Delta(role="assistant", content=""))
        yield self._chunk(choice, prompt_token_ids=self._prompt_ids(started))

    def whole(self, started: Started, pieces: Sequence[Piece], finished: Finished) -> Struct:
        choice = openai.ChatChoice(
            message=openai.AssistantMessage(content="".join(piece.text for piece in pieces)),
            finish_reason=finished.reason,
            logprobs=self._logprobs(pieces),
            token_ids=self._token_ids(pieces),
        )
        return self._make(
            openai.ChatCompletion,
            choice,
            usage=usage_of(started, finished),
            potluck=finished.timings,
            prompt_token_ids=self._prompt_ids(started),
        )

    def _part(self, piece: Piece) -> Struct:
        return openai.ChatChunkChoice(
            delta=openai.Delta(content=piece.text),
            logprobs=self._logprobs([piece]),
            token_ids=self._token_ids([piece]),
        )

    def _end(self, finished: Finished) -> Struct:
        return openai.ChatChunkChoice(delta=openai.Delta(), finish_reason=finished.reason)

    def _logprobs(self, pieces: Sequence[Piece]) -> openai.ChatLogprobs | None:
        if self._answer.logprobs is None:
            return None
        tokens = [_chat_logprob(token) for piece in pieces for token in piece.logprobs]
        return openai.ChatLogprobs(content=tokens)


class TextFormat(Format):
    """The format of `/v1/completions`."""

    prefix = "cmpl"
    _chunk_kind = openai.Completion

    def first(self, started: Started) -> Iterator[Struct]:
        if self._answer.token_ids:
            ids = self._prompt_ids(started)
            yield self._chunk(openai.CompletionChoice(text="", prompt_token_ids=ids))

    def whole(self, started: Started, pieces: Sequence[Piece], finished: Finished) -> Struct:
        choice = openai.CompletionChoice(
            text="".join(piece.text for piece in pieces),
            finish_reason=finished.reason,
            logprobs=self._logprobs(pieces),
            token_ids=self._token_ids(pieces),
            prompt_token_ids=self._prompt_ids(started),
        )
        return self._chunk(choice, usage=usage_of(started, finished), potluck=finished.timings)

    def _part(self, piece: Piece) -> Struct:
        return openai.CompletionChoice(
            text=piece.text, logprobs=self._logprobs([piece]), token_ids=self._token_ids([piece])
        )

    def _end(self, finished: Finished) -> Struct:
        return openai.CompletionChoice(text="", finish_reason=finished.reason)

    def _logprobs(self, pieces: Sequence[Piece]) -> openai.CompletionLogprobs | None:
        if self._answer.logprobs is None:
            return None
        tokens = [token for piece in pieces for token in piece.logprobs]
        offsets: list[int] = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(_text(token.chosen))
        return openai.CompletionLogprobs(
            tokens=[_text(token.chosen) for token in tokens],
            token_logprobs=[token.chosen.logprob for token in tokens],
            top_logprobs=[{_text(c): c.logprob for c in token.best} for token in tokens]
            if self._answer.logprobs
            else None,
            text_offset=offsets,
        )


def joined(answers: Sequence[Struct], usage: openai.Usage) -> Struct:
    """One answer with the choices of all."""
    choices = tuple(choice for answer in answers for choice in answer.choices)  # type: ignore[attr-defined]
    return replace(answers[0], choices=choices, usage=usage)


def total(usages: Sequence[openai.Usage], repeats: int) -> openai.Usage:
    """The usage of several answers. So many, one after the other, have a prompt in common: it counts once."""
    prompt = sum(usage.prompt_tokens for usage in usages[::repeats])
    completion = sum(usage.completion_tokens for usage in usages)
    cached = sum(usage.prompt_tokens_details.cached_tokens for usage in usages[::repeats])
    return openai.Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=openai.PromptTokensDetails(cached_tokens=cached),
    )


def usage_of(started: Started, finished: Finished) -> openai.Usage:
    """What one answer took."""
    prompt, completion = len(started.prompt_token_ids), finished.completion_tokens
    return openai.Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=openai.PromptTokensDetails(cached_tokens=started.cached_tokens),
    )


def _text(candidate: Candidate) -> str:
    return candidate.token.decode(errors="replace")


def _chat_logprob(token: ChosenToken) -> openai.TokenLogprob:
    chosen = token.chosen
    return openai.TokenLogprob(
        token=_text(chosen),
        logprob=chosen.logprob,
        bytes=list(chosen.token),
        top_logprobs=tuple(
            openai.TopLogprob(token=_text(c), logprob=c.logprob, bytes=list(c.token))
            for c in token.best
        ),
    )
