"""Pictures at a stage: its tower reads them, for itself or for a first stage elsewhere, whose driver gets the rows."""

from collections.abc import Iterator
from typing import TypeAlias

from potluck.cluster.stage.steps import Answer
from potluck.engine.payload import Activations, from_payload, pixels_of, to_payload
from potluck.engine.stage import Stage
from potluck.wire.picture_messages import (
    MAX_ROWS_BYTES,
    GiveRows,
    ReadPicture,
    RowsRead,
    ShowPicture,
)

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
