"""What a rank of a group does of what its rank 0 does now. Only rank 0 hears of it, and only if it has to know."""

import logging
from collections.abc import Sequence

from potluck.cluster.stage.loaded import LoadedStage
from potluck.cluster.stage.pictures import PictureMessage, show
from potluck.cluster.stage.ranks import Ranks
from potluck.cluster.stage.scheduler import Waiting
from potluck.cluster.stage.steps import TransferMessage, apply, restore, step_tokens, transfer
from potluck.errors import PotluckError
from potluck.wire.activation_messages import (
    CloseSession,
    Forward,
    KeepSession,
    OpenSession,
    RestoreSession,
    TrimSession,
)

logger = logging.getLogger(__name__)


def follow(ranks: Ranks, loaded: LoadedStage, members: Sequence[Waiting]) -> None:
    """Do what rank 0 has passed on.

    Raises:
        Exception: of Potluck or torch: this rank cannot do it. Rank 0 knows, where the step has sums.
    """
    steps = [(w.message, w.payload) for w in members if isinstance(w.message, Forward)]
    if steps:
        with ranks.step(steps[0][0].rank_step):
            loaded.stage.follow([step_tokens(*step) for step in steps])
        for message, _ in steps:
            loaded.transfers.go_on(message.session)
    for waiting in members:
        _do(loaded, waiting)


def _do(loaded: LoadedStage, waiting: Waiting) -> None:
    match waiting.message:
        case OpenSession() | TrimSession() | CloseSession() as message:
            loaded.drop(message.session)
            apply(loaded.stage, message, waiting.payload)
        case KeepSession() as message:
            apply(loaded.stage, message, waiting.payload)
        case RestoreSession() as message:
            _restore(loaded, waiting, message)
        case message if isinstance(message, TransferMessage):
            loaded.driver = waiting.link
            transfer(loaded, message)
        case message if isinstance(message, PictureMessage):
            show(loaded.stage, message, waiting.payload)
        case _:
            pass


def _restore(loaded: LoadedStage, waiting: Waiting, message: RestoreSession) -> None:
    """Read what is on the disk. Rank 0 waits, and sends nothing of this session meanwhile."""
    loaded.driver = waiting.link
    loaded.agreement.ask(message)
    try:
        restore(loaded.stage, message, lambda position: loaded.agreement.own(message, position))
    except PotluckError as error:
        logger.info("nothing is restored here: %s", error)
        loaded.agreement.own(message, 0)
