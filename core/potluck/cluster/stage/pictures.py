"""Pictures at a stage: its tower reads them, for itself or for a first stage elsewhere, whose driver gets the rows."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeAlias

from potluck.cluster.loss import computer_lost
from potluck.cluster.stage.loaded import LoadedStage
from potluck.cluster.stage.scheduler import PeerLink
from potluck.cluster.stage.steps import Answer
from potluck.engine.payload import Activations, from_payload, pixels_of, to_payload
from potluck.engine.stage import Stage
from potluck.errors import EngineError, PeerLostError, PotluckError
from potluck.wire.picture_messages import (
    MAX_ROWS_BYTES,
    GiveRows,
    NotRead,
    ReadPicture,
    RowsRead,
    ShowPicture,
)

logger = logging.getLogger(__name__)

PictureMessage: TypeAlias = ShowPicture | GiveRows
"""What is said of a picture to a first stage."""


def show(stage: Stage, message: PictureMessage, payload: memoryview) -> None:
    """Have the stage's tower read a picture whose rows come in a later step, or take rows that another one has made."""
    if isinstance(message, ShowPicture):
        _read(stage, message, payload)
        return
    stage.take_rows(
        message.picture,
        from_payload(message.tensor, payload).tensor,
        first=message.first,
        total=message.total,
        epoch=message.epoch,
    )


def read(stage: Stage, message: ReadPicture, payload: memoryview) -> Iterator[Answer]:
    """Have the stage's tower read a picture for a first stage elsewhere; yield the rows for the driver.

    Raises:
        PotluckError: it cannot be read.
    """
    _read(stage, message, payload)
    rows = stage.rows_of(message.picture)
    size = max(1, MAX_ROWS_BYTES // (4 * rows.shape[1]))
    for first in range(0, len(rows), size):
        header, data = to_payload(Activations.of(rows[first : first + size]))
        answer = RowsRead(
            epoch=message.epoch,
            picture=message.picture,
            first=first,
            total=len(rows),
            tensor=header,
        )
        yield answer, data


def _read(stage: Stage, message: ShowPicture | ReadPicture, payload: memoryview) -> None:
    stage.show(
        message.picture,
        pixels_of(message.tensor, payload),
        mean=message.mean,
        deviation=message.deviation,
        epoch=message.epoch,
    )


def read_for(
    name: str,
    loaded: LoadedStage | None,
    link: PeerLink,
    message: ReadPicture,
    payload: memoryview,
) -> Exception | None:
    """Have the tower read a picture for a first stage elsewhere. Whoever asked hears of its rows, or why there are none.

    Returns:
        Why it was not read; None: it was, or nobody may ask.
    """
    try:
        if loaded is None:
            raise computer_lost(name, "gave its part back")
        if link.peer_role != "master" or link.home != loaded.home:
            logger.warning("pictures of %s are not for this stage", link.peer.name)
            return None
        for answer in read(loaded.stage, message, payload):
            link.send_nowait(*answer)
    except Exception as error:  # noqa: BLE001 - one picture failed, the stage stays
        _refuse(name, link, message, error)
        return error
    return None


def _refuse(name: str, link: PeerLink, message: ReadPicture, error: Exception) -> None:
    if not isinstance(error, PotluckError):
        logger.error("a picture was not read", exc_info=error)
        error = EngineError(f"{name} failed to read a picture; its engine.log says why.")
    not_read = NotRead(
        epoch=message.epoch, picture=message.picture, kind=error.code, message=error.message
    )
    with suppress(PeerLostError):  # who asked is gone
        link.send_nowait(not_read)
