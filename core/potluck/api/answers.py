"""Format the events of one generation as OpenAI's answers, either in chunks or as a whole."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from msgspec import UNSET, Struct, UnsetType

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


class Format(Protocol):
    """One format of answers. Use an instance for one answer: it counts the characters sent."""

    prefix: ClassVar[str]

    def __init__(self, answer: Answer) -> None: ...

    def first(self, started: Started) -> Iterator[Struct]: ...

    def piece(self, piece: Piece) -> Iterator[Struct]: ...

    def last(self, started: Started, finished: Finished, usage: bool) -> Iterator[Struct]: ...

    def whole(self, started: Started, pieces: Sequence[Piece], finished: Finished) -> Struct: ...


class ChatFormat:
    """The format of `/v1/chat/completions`."""

    prefix: ClassVar[str] = "chatcmpl"

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def first(self, started: Started) -> Iterator[Struct]:
        yield self._chunk(
            openai.ChatChunkChoice(delta=openai.Delta(role="assistant", content="")),
            prompt_token_ids=list(started.prompt_token_ids) if self._answer.token_ids else UNSET,
        )

    def piece(self, piece: Piece) -> Iterator[Struct]:
        if not piece.text and not self._answer.token_ids and self._answer.logprobs is None:
            return
        yield self._chunk(
            openai.ChatChunkChoice(
                delta=openai.Delta(content=piece.text),
                logprobs=self._logprobs([piece]),
                token_ids=_token_ids(self._answer, [piece]),
            )
        )

    def last(self, started: Started, finished: Finished, usage: bool) -> Iterator[Struct]:
        choice = openai.ChatChunkChoice(delta=openai.Delta(), finish_reason=finished.reason)
        if not usage:
            yield self._chunk(choice, potluck=finished.timings)
            return
        yield self._chunk(choice, usage=None)
        yield self._chunk(usage=_usage(started, finished), potluck=finished.timings)

    def whole(self, started: Started, pieces: Sequence[Piece], finished: Finished) -> Struct:
        choice = openai.ChatChoice(
            message=openai.AssistantMessage(content="".join(piece.text for piece in pieces)),
            finish_reason=finished.reason,
            logprobs=self._logprobs(pieces),
            token_ids=_token_ids(self._answer, pieces),
        )
        return openai.ChatCompletion(
            id=self._answer.id,
            created=self._answer.created,
            model=self._answer.model,
            choices=(choice,),
            usage=_usage(started, finished),
            potluck=finished.timings,
            prompt_token_ids=list(started.prompt_token_ids) if self._answer.token_ids else UNSET,
        )

    def _chunk(
        self,
        *choices: openai.ChatChunkChoice,
        usage: openai.Usage | UnsetType | None = UNSET,
        potluck: openai.Timings | UnsetType = UNSET,
        prompt_token_ids: list[int] | UnsetType = UNSET,
    ) -> openai.ChatChunk:
        return openai.ChatChunk(
            id=self._answer.id,
            created=self._answer.created,
            model=self._answer.model,
            choices=choices,
            usage=usage,
            potluck=potluck,
            prompt_token_ids=prompt_token_ids,
        )

    def _logprobs(self, pieces: Sequence[Piece]) -> openai.ChatLogprobs | None:
        if self._answer.logprobs is None:
            return None
        tokens = [_chat_logprob(token) for piece in pieces for token in piece.logprobs]
        return openai.ChatLogprobs(content=tokens)


class TextFormat:
    """The format of `/v1/completions`."""

    prefix: ClassVar[str] = "cmpl"

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._offset = 0  # characters of the tokens whose logprobs were sent

    def first(self, started: Started) -> Iterator[Struct]:
        if self._answer.token_ids:
            ids = list(started.prompt_token_ids)
            yield self._chunk(openai.CompletionChoice(text="", prompt_token_ids=ids))

    def piece(self, piece: Piece) -> Iterator[Struct]:
        if not piece.text and not self._answer.token_ids and self._answer.logprobs is None:
            return
        yield self._chunk(
            openai.CompletionChoice(
                text=piece.text,
                logprobs=self._logprobs([piece]),
                token_ids=_token_ids(self._answer, [piece]),
            )
        )

    def last(self, started: Started, finished: Finished, usage: bool) -> Iterator[Struct]:
        choice = openai.CompletionChoice(text="", finish_reason=finished.reason)
        if not usage:
            yield self._chunk(choice, potluck=finished.timings)
            return
        yield self._chunk(choice, usage=None)
        yield self._chunk(usage=_usage(started, finished), potluck=finished.timings)

    def whole(self, started: Started, pieces: Sequence[Piece], finished: Finished) -> Struct:
        choice = openai.CompletionChoice(
            text="".join(piece.text for piece in pieces),
            finish_reason=finished.reason,
            logprobs=self._logprobs(pieces),
            token_ids=_token_ids(self._answer, pieces),
            prompt_token_ids=list(started.prompt_token_ids) if self._answer.token_ids else UNSET,
        )
        return self._chunk(choice, usage=_usage(started, finished), potluck=finished.timings)

    def _chunk(
        self,
        *choices: openai.CompletionChoice,
        usage: openai.Usage | UnsetType | None = UNSET,
        potluck: openai.Timings | UnsetType = UNSET,
    ) -> openai.Completion:
        return openai.Completion(
            id=self._answer.id,
            created=self._answer.created,
            model=self._answer.model,
            choices=choices,
            usage=usage,
            potluck=potluck,
        )

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


def _usage(started: Started, finished: Finished) -> openai.Usage:
    prompt, completion = len(started.prompt_token_ids), finished.completion_tokens
    return openai.Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=openai.PromptTokensDetails(cached_tokens=started.cached_tokens),
    )


def _token_ids(answer: Answer, pieces: Sequence[Piece]) -> list[int] | UnsetType:
    if not answer.token_ids:
        return UNSET
    return [token_id for piece in pieces for token_id in piece.token_ids]


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
