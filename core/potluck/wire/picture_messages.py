"""Messages with pictures: pixels to where a vision tower is, and rows from there to the first stage."""

from typing import Annotated

from msgspec import Meta

from potluck.wire.activation_messages import TensorHeader
from potluck.wire.fields import Count, Hex, SessionName
from potluck.wire.messages import Message, Told

MAX_ROWS_BYTES = 4 << 20  # of one message: a token need not wait long behind it

_Level = Annotated[float, Meta(ge=-1e3, le=1e3)]
_Spread = Annotated[float, Meta(ge=1e-6, le=1e6)]


class ShowPicture(Message, frozen=True, tag="show_picture"):
    """From the driver to the first stage: rows of this picture come in a later step. It stays there.

    Payload: its pixels (U8, [H, W, 3]), of a size that the model's tower takes.
    """

    epoch: Count
    session: SessionName
    step: Count  # the next one, which fails if the picture cannot be read
    position: Count  # of its first row
    picture: Hex  # its name, by its content
    tensor: TensorHeader
    mean: tuple[_Level, _Level, _Level]
    deviation: tuple[_Spread, _Spread, _Spread]
    """Red, green and blue go from 0 to 1, less this mean, divided by this deviation."""


class ReadPicture(Message, frozen=True, tag="read_picture"):
    """From the driver to a stage with a tower: make rows of this picture, for a first stage elsewhere.

    It is answered by `rows_read` until all rows were sent, or by `not_read`. Payload: as of `show_picture`.
    """

    epoch: Count
    session: SessionName  # whose prompt it is in
    picture: Hex
    tensor: TensorHeader
    mean: tuple[_Level, _Level, _Level]
    deviation: tuple[_Spread, _Spread, _Spread]


class RowsRead(Message, frozen=True, tag="rows_read"):
    """From a stage with a tower to the driver: rows of a picture, in their order. Payload: F32, [rows, numbers]."""

    epoch: Count
    picture: Hex
    first: Count  # number of the first one
    total: Count  # rows of the picture
    tensor: TensorHeader


class NotRead(Told, frozen=True, tag="not_read"):
    """From a stage with a tower to the driver: it cannot read this picture."""

    epoch: Count
    picture: Hex
    kind: Annotated[str, Meta(max_length=64)]  # a code of `errors.py`


class GiveRows(Message, frozen=True, tag="give_rows"):
    """From the driver to the first stage, in place of `show_picture`: rows that another tower made. They stay there.

    Payload: as of `rows_read`.
    """

    epoch: Count
    session: SessionName
    step: Count  # the next one, which fails if the rows are not taken
    position: Count  # of the picture's first row
    picture: Hex
    first: Count
    total: Count
    tensor: TensorHeader
