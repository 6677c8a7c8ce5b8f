"""An answer as server-sent events that have names, as the newer APIs of Anthropic and OpenAI send them."""

import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Protocol

import msgspec
from msgspec import Struct

from potluck.api.events import (
    Finished,
    GenerationEvent,
    Loading,
    Piece,
    Reading,
    Started,
    Waiting,
)
from potluck.api.http.streams import Comment, Event
from potluck.api.v1.answers import progress_text

logger = logging.getLogger(__name__)


class Format(Protocol):
    """Turns an answer into the events of an API, whose tags are their names."""

    def first(self, started: Started) -> Iterable[Struct]: ...

    def piece(self, piece: Piece) -> Iterable[Struct]: ...

    def last(self, finished: Finished) -> Iterable[Struct]: ...


async def named_events(
    answer: AsyncGenerator[GenerationEvent, None],
    form: Format,
    *,
    broken: Callable[[Exception], Event],
    when_whole: Callable[[], None] = lambda: None,
) -> AsyncGenerator[Event | Comment, None]:
    """Yield an answer's events, and comments while it waits.

    Args:
        answer: is closed in the end.
        form: of the API.
        broken: the event for an error after the first one; an error before is raised.
        when_whole: called after the last event of an answer that did not break off.
    """
    is_sent = False
    try:
        async with aclosing(answer) as events:
            async for event in events:
                is_sent = True
                match event:
                    case Waiting() | Loading() | Reading():
                        yield Comment(progress_text(event))
                        continue
                    case Started():
                        parts = form.first(event)
                    case Piece():
                        parts = form.piece(event)
                    case Finished():
                        parts = form.last(event)
                for part in parts:
                    yield named(part)
        when_whole()
    except Exception as error:
        if not is_sent:
            raise
        logger.info("answer broke off error=%s", type(error).__name__)
        yield broken(error)


def named(event: Struct) -> Event:
    """An event by its tag."""
    return Event(str(event.__struct_config__.tag), msgspec.json.encode(event))
