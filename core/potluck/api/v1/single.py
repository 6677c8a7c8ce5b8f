"""One answer, whole: what formats need of it that send it at once."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from potluck.api.events import Finished, GenerationEvent, Piece, Started


async def collected(
    events: AsyncGenerator[GenerationEvent, None],
) -> tuple[Started, list[Piece], Finished]:
    """All events of one answer that belong to it."""
    started, finished = None, None
    pieces: list[Piece] = []
    async with aclosing(events) as open_events:
        async for event in open_events:
            match event:
                case Started():
                    started = event
                case Piece():
                    pieces.append(event)
                case Finished():
                    finished = event
                case _:
                    pass
    assert started is not None  # as `Answering.generate` says
    assert finished is not None
    return started, pieces, finished
