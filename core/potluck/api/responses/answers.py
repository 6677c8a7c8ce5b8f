"""Format the events of one generation as a response: in events of a stream, or as a whole."""

import secrets
from collections.abc import Collection, Iterator, Sequence

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from potluck.api.events import CallPiece, Finished, Piece, Started
from potluck.api.prompts import ChatTurn, ToolCall
from potluck.api.responses.asking import SEPARATOR, name_in
from potluck.api.responses.events import (
    ArgumentsDelta,
    ArgumentsDone,
    Completed,
    Created,
    Failed,
    IncompleteEvent,
    InProgress,
    ItemAdded,
    ItemDone,
    Numbered,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    TextDelta,
    TextDone,
)
from potluck.api.responses.shapes import (
    CallItem,
    Failure,
    Incomplete,
    InputDetails,
    MessageItem,
    ModelResponse,
    OutputDetails,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseRequest,
    Usage,
)
from potluck.api.v1.openai_checks import json_text


def new_response(asked: ResponseRequest, model: str, created: int) -> ModelResponse:
    """A response that has just begun."""
    choice = asked.tool_choice
    return ModelResponse(
        id=f"resp_{secrets.token_hex(16)}",
        created_at=created,
        model=model,
        status="in_progress",
        instructions=asked.instructions,
        previous_response_id=asked.previous_response_id,
        max_output_tokens=asked.max_output_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        tool_choice=msgspec.Raw(msgspec.json.encode(choice or "auto")),
        tools=msgspec.Raw(json_text(asked.tools).encode() or b"[]"),
        metadata=msgspec.Raw(json_text(asked.metadata).encode() or b"{}"),
        store=asked.store is not False,
    )


class ResponseFormat:
    """One answer, in pieces.

    Attributes:
        response: what there is of it.
    """

    def __init__(self, response: ModelResponse, namespaces: Collection[str] = frozenset()) -> None:
        """Begin an answer.

        Args:
            response: that has just begun.
            namespaces: the names of the groups that tools are in.
        """
        self.response, self._namespaces = response, namespaces
        self._number = 0
        self._item: OutputItem | None = None  # the one that is being written
        self._call: int | None = None  # the number of the call that it is
        self._started = Started(prompt_token_ids=())
        self._reasoning_tokens = 0

    def first(self, started: Started) -> Iterator[Numbered]:
        """The beginning of the answer."""
        self._started = started
        yield self._numbered(Created(response=self.response))
        yield self._numbered(InProgress(response=self.response))

    def piece(self, piece: Piece) -> Iterator[Numbered]:
        """More of it."""
        for event in self._piece(piece):
            yield self._numbered(event)

    def last(self, finished: Finished) -> Iterator[Numbered]:
        """The end of it, with its figures."""
        for event in self._end():
            yield self._numbered(event)
        is_whole = finished.reason != "length"
        self.response = replace(
            self.response,
            status="completed" if is_whole else "incomplete",
            incomplete_details=None if is_whole else Incomplete(),
            usage=self._usage(finished),
            potluck=finished.timings,
        )
        kind = Completed if is_whole else IncompleteEvent
        yield self._numbered(kind(response=self.response))

    def broken(self, code: str, message: str) -> Numbered:
        """The last event of an answer that broke off."""
        failure = Failure(code=code, message=message)
        self.response = replace(self.response, status="failed", error=failure)
        return self._numbered(Failed(response=self.response))

    def whole(self, started: Started, pieces: Sequence[Piece], finished: Finished) -> ModelResponse:
        """The answer as one object."""
        for _ in self.first(started):
            pass
        for piece in pieces:
            for _ in self.piece(piece):
                pass
        for _ in self.last(finished):
            pass
        return self.response

    def turn(self) -> ChatTurn:
        """The answer as a turn of the conversation."""
        items = self.response.output
        return ChatTurn(
            role="assistant",
            content="".join(
                part.text
                for item in items
                if isinstance(item, MessageItem)
                for part in item.content
            ),
            reasoning="".join(
                part.text
                for item in items
                if isinstance(item, ReasoningItem)
                for part in item.content
            ),
            calls=tuple(
                ToolCall(
                    id=item.call_id,
                    name=name_in(item.namespace or None, item.name),
                    arguments=item.arguments,
                )
                for item in items
                if isinstance(item, CallItem)
            ),
        )

    # --- items

    @property
    def _index(self) -> int:
        return len(self.response.output)

    def _piece(self, piece: Piece) -> Iterator[Numbered]:
        if piece.reasoning:
            self._reasoning_tokens += len(piece.token_ids)
            if not isinstance(self._item, ReasoningItem):
                text = ReasoningText(text="")
                yield from self._begin(ReasoningItem(id=_new("rs"), status="in_progress"), text)
            yield from self._more(piece.reasoning)
        if piece.text:
            if not isinstance(self._item, MessageItem):
                text = OutputText(text="")
                yield from self._begin(MessageItem(id=_new("msg"), status="in_progress"), text)
            yield from self._more(piece.text)
        for call in piece.calls:
            yield from self._call_piece(call)

    def _call_piece(self, call: CallPiece) -> Iterator[Numbered]:
        if self._call != call.index or not isinstance(self._item, CallItem):
            namespace, _, name = call.name.partition(SEPARATOR)
            is_in_group = namespace in self._namespaces
            item = CallItem(
                id=_new("fc"),
                call_id=call.id,
                name=name if is_in_group else call.name,
                namespace=namespace if is_in_group else UNSET,
                arguments="",
                status="in_progress",
            )
            yield from self._begin(item, None)
            self._call = call.index
        if call.arguments:
            yield from self._more(call.arguments)

    def _begin(
        self, item: OutputItem, part: OutputText | ReasoningText | None
    ) -> Iterator[Numbered]:
        yield from self._end()
        self._item = item
        yield ItemAdded(output_index=self._index, item=item)
        if part is not None:
            yield PartAdded(item_id=item.id, output_index=self._index, part=part)

    def _more(self, text: str) -> Iterator[Numbered]:
        """More of the item."""
        match self._item:
            case MessageItem() as item:
                self._item = replace(item, content=(OutputText(text=_text_of(item) + text),))
                yield TextDelta(item_id=item.id, output_index=self._index, delta=text)
            case ReasoningItem() as item:
                self._item = replace(item, content=(ReasoningText(text=_text_of(item) + text),))
                yield ReasoningDelta(item_id=item.id, output_index=self._index, delta=text)
            case CallItem() as item:
                self._item = replace(item, arguments=item.arguments + text)
                yield ArgumentsDelta(item_id=item.id, output_index=self._index, delta=text)
            case None:
                pass

    def _end(self) -> Iterator[Numbered]:
        """The end of the item."""
        item, index = self._item, self._index
        if item is None:
            return
        item = replace(item, status="completed")
        match item:
            case MessageItem():
                text = _text_of(item)
                yield TextDone(item_id=item.id, output_index=index, text=text)
                yield PartDone(item_id=item.id, output_index=index, part=OutputText(text=text))
            case ReasoningItem():
                text = _text_of(item)
                yield ReasoningDone(item_id=item.id, output_index=index, text=text)
                yield PartDone(item_id=item.id, output_index=index, part=ReasoningText(text=text))
            case CallItem():
                yield ArgumentsDone(
                    item_id=item.id, output_index=index, name=item.name, arguments=item.arguments
                )
        yield ItemDone(output_index=index, item=item)
        self.response = replace(self.response, output=(*self.response.output, item))
        self._item = None

    def _numbered(self, event: Numbered) -> Numbered:
        event.sequence_number = self._number
        self._number += 1
        return event

    def _usage(self, finished: Finished) -> Usage:
        prompt, output = len(self._started.prompt_token_ids), finished.completion_tokens
        return Usage(
            input_tokens=prompt,
            output_tokens=output,
            total_tokens=prompt + output,
            input_tokens_details=InputDetails(cached_tokens=self._started.cached_tokens),
            output_tokens_details=OutputDetails(reasoning_tokens=self._reasoning_tokens),
        )


def _text_of(item: MessageItem | ReasoningItem) -> str:
    return "".join(part.text for part in item.content)


def _new(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
