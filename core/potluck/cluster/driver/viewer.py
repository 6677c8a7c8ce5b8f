"""Pictures that another computer reads for the first stage, which could read them as well.

A viewer is a stage with the vision tower and without the embedding. It is sent the pixels, and the rows that it makes go to the first stage
by way of the driver. Whatever goes wrong with it, the first stage reads the picture: an answer never depends on it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from potluck.cluster.driver.chain_ends import ActivationLink
from potluck.cluster.driver.conversation import Conversation
from potluck.cluster.driver.model_text import Picture, Rows
from potluck.errors import EngineError, PeerLostError, PeerTimeoutError, PotluckError, rebuild
from potluck.ids import SessionId
from potluck.wire.activation_messages import TensorHeader
from potluck.wire.messages import Error, Message
from potluck.wire.picture_messages import NotRead, ReadPicture, RowsRead

logger = logging.getLogger(__name__)

MOST_REFUSED = 2  # pictures in a row; then it has no memory for any, as far as one can tell


@dataclass(slots=True, kw_only=True, eq=False)
class _Reading:
    """A picture that is being read."""

    total: int  # rows of it
    future: "asyncio.Future[Sequence[Rows]]"
    rows: list[Rows] = field(default_factory=list[Rows])
    filled: int = 0


class Viewer:
    """A connection to a stage that reads pictures. It breaks by itself; then no picture goes to it any more.

    Attributes:
        name: of its computer, for the log.
        broken: why it reads no picture any more; None: it does.
    """

    def __init__(
        self,
        link: ActivationLink,
        *,
        epoch: int,
        numbers: int,
        name: str,
        limit_s: float,
        begins: Callable[[int], None] = lambda rows: None,
    ) -> None:
        """Make a viewer; `run` starts it.

        Args:
            link: to its stage.
            epoch: number of the plan.
            numbers: of a row.
            name: see the attribute.
            limit_s: how long a picture may take, when those before it are read.
            begins: told how many rows a picture has that is sent.
        """
        self.name = name
        self.broken: PotluckError | None = None
        self._link, self._epoch, self._numbers, self._limit_s = link, epoch, numbers, limit_s
        self._begins = begins
        self._loop = asyncio.get_running_loop()
        self._readings: dict[str, _Reading] = {}  # by the name of the picture
        self._refused = 0  # pictures in a row
        self._since = 0.0  # time from which on it reads the picture that is read now

    async def run(self) -> None:
        """Receive rows until the connection ends, or rows come that were not asked for."""
        self._link.deliver_to(self._receive)
        try:
            await self._link.wait_closed()
        except PotluckError as error:
            self.fail(error)
        else:
            self.fail(
                PeerLostError(f"{self.name} reads pictures no more: its connection has ended.")
            )

    def fail(self, error: PotluckError) -> None:
        """Read nothing any more; those who wait for a picture hear this error."""
        self.broken = self.broken or error
        readings, self._readings = self._readings, {}
        for reading in readings.values():
            _refuse(reading, error)
        self._link.close()

    async def view(self, conversation: Conversation, most: int) -> None:
        """Read the pictures that a conversation's next step of at most so many tokens shows, as far as that is possible."""
        pictures = conversation.to_show(most)
        await asyncio.gather(*(self._view(conversation, picture) for picture in pictures))

    async def _view(self, conversation: Conversation, picture: Picture) -> None:
        try:
            rows = await self._read(conversation.session, picture)
        except PotluckError as error:
            logger.warning("a picture is not read by %s: %s", self.name, error)
        else:
            conversation.pictures.keep_rows(picture.name, rows)

    async def _read(self, session: SessionId, picture: Picture) -> Sequence[Rows]:
        """The rows of a picture.

        Raises:
            PotluckError: it cannot be read here.
        """
        if self.broken is not None:
            raise self.broken
        reading = self._readings.get(picture.name)
        if reading is None:
            reading = self._begin(session, picture)
        while True:
            due = self._since + self._limit_s
            try:
                async with asyncio.timeout_at(due):
                    return await asyncio.shield(reading.future)
            except TimeoutError:
                if due < self._since + self._limit_s:
                    continue  # another one has been read meanwhile
                late = PeerTimeoutError(f"{self.name} did not read a picture in time.")
                self.fail(late)
                raise late from None

    def _begin(self, session: SessionId, picture: Picture) -> _Reading:
        message = ReadPicture(
            epoch=self._epoch,
            session=session,
            picture=picture.name,
            tensor=TensorHeader(dtype="U8", shape=(picture.height, picture.width, 3)),
            mean=picture.mean,
            deviation=picture.deviation,
        )
        self._link.send_nowait(message, picture.pixels)
        self._begins(picture.made)
        reading = _Reading(total=picture.made, future=self._loop.create_future())
        if not self._readings:
            self._since = self._loop.time()
        self._readings[picture.name] = reading
        return reading

    # --- in the thread that receives

    def _receive(self, message: Message, payload: memoryview) -> None:
        match message:
            case RowsRead() | NotRead() if message.epoch == self._epoch:
                rows = bytes(payload)  # its memory is used again
                self._loop.call_soon_threadsafe(self._take, message, rows)
            case Error():
                error = EngineError(message.message, kind=message.kind)
                self._loop.call_soon_threadsafe(self.fail, error)
            case _:
                logger.debug("viewer ignores a message op=%s", type(message).__name__)

    # --- in the event loop

    def _take(self, message: RowsRead | NotRead, data: bytes) -> None:
        reading = self._readings.get(message.picture)
        if reading is None:
            return  # nobody waits for it any more
        if isinstance(message, NotRead):
            self._end(message.picture)
            error = rebuild(message.kind, message.message, {}, default=EngineError)
            _refuse(reading, error)
            self._refused += 1
            if self._refused == MOST_REFUSED:
                self.fail(error)
            return
        count, numbers = message.tensor.shape
        is_next = (message.first, message.total, numbers) == (
            reading.filled,
            reading.total,
            self._numbers,
        )
        fits = is_next and reading.filled + count <= reading.total
        # Others would fail every step with them, as often as the answer is tried again.
        if not fits or not np.isfinite(np.frombuffer(data, "<f4")).all():
            self.fail(EngineError(f"{self.name} sent rows that are not those of the picture."))
            return
        reading.rows.append(Rows(message.tensor, data))
        reading.filled += count
        if reading.filled == reading.total:
            self._end(message.picture)
            self._refused = 0
            if not reading.future.done():
                reading.future.set_result(reading.rows)

    def _end(self, picture: str) -> None:
        """Go on to the next picture."""
        del self._readings[picture]
        self._since = self._loop.time()


class Looking:
    """The pictures of one prompt's steps, one after the other, while other steps of it are under way."""

    def __init__(self, viewer: Viewer | None, conversation: Conversation) -> None:
        """Without a viewer, no step waits for any."""
        self._viewer, self._conversation = viewer, conversation
        self._task: asyncio.Task[None] | None = None

    async def may_send(self, most: int, *, can_wait: bool) -> bool:
        """Whether the rows of the next step's pictures are here, or will not come: have them read.

        Args:
            most: tokens of that step.
            can_wait: until it is so; else the answer comes at once.
        """
        viewer, conversation = self._viewer, self._conversation
        if self._task is None and viewer is not None and conversation.to_show(most):
            self._task = asyncio.create_task(viewer.view(conversation, most), name="pictures")
        if self._task is None:
            return True
        if not (can_wait or self._task.done()):
            return False
        await self._task
        self._task = None
        return True

    def stop(self) -> None:
        """Wait for no picture any more."""
        if self._task is not None:
            self._task.cancel()


def _refuse(reading: _Reading, error: PotluckError) -> None:
    if not reading.future.done():
        reading.future.set_exception(error)
        reading.future.exception()  # who asked may be gone, and nobody look at it
