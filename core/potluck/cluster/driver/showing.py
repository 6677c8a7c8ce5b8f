"""What the first stage is sent of pictures, before the step with their first rows: pixels, or rows made elsewhere."""

from potluck.cluster.driver.model_text import Picture
from potluck.cluster.driver.pictures import Pictures
from potluck.cluster.driver.pipeline import Pipeline
from potluck.ids import SessionId
from potluck.wire.activation_messages import TensorHeader
from potluck.wire.picture_messages import GiveRows, ShowPicture


def show(
    pipeline: Pipeline, session: SessionId, step: int, pictures: Pictures, begin: int, end: int
) -> None:
    """Send the first stage the pictures that a step needs and that it was not sent.

    Args:
        pipeline: its chain.
        session: whose step it is.
        step: its number. It fails if a picture cannot be read.
        pictures: of the prompt.
        begin: the position of the step's first token.
        end: the position after its last one.
    """
    for position, picture in pictures.unshown(begin, end):
        if rows := pictures.take_rows(picture.name):
            total, first = sum(some.tensor.shape[0] for some in rows), 0
            for some in rows:
                given = GiveRows(
                    epoch=pipeline.epoch,
                    session=session,
                    step=step,
                    position=position,
                    picture=picture.name,
                    first=first,
                    total=total,
                    tensor=some.tensor,
                )
                pipeline.send_picture(given, some.data)
                first += some.tensor.shape[0]
        else:
            message = _shown(pipeline, session, step, position, picture)
            pipeline.send_picture(message, picture.pixels, rows=picture.made)


def _shown(
    pipeline: Pipeline, session: SessionId, step: int, position: int, picture: Picture
) -> ShowPicture:
    return ShowPicture(
        epoch=pipeline.epoch,
        session=session,
        step=step,
        position=position,
        picture=picture.name,
        tensor=TensorHeader(dtype="U8", shape=(picture.height, picture.width, 3)),
        mean=picture.mean,
        deviation=picture.deviation,
    )
