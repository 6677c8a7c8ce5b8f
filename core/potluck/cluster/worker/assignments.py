"""Check what a master assigns."""

from collections.abc import Sequence

from potluck.cluster.worker.contents import Content
from potluck.errors import BrokenModelError
from potluck.ids import Digest
from potluck.model.checkpoint.stored import find_stored
from potluck.model.config import ModelConfig
from potluck.model.shares import Share, TensorSlice
from potluck.model.stored_slices import find_slices, stage_slices
from potluck.wire.messages import Assign
from potluck.wire.spare_messages import Keep


def check_assignment(message: Assign) -> dict[Digest, Content]:
    """Check that the tensors are exactly those that the config demands for these layers, whole or as the rank's slices.

    Returns:
        The tensors by digest.

    Raises:
        ModelError: the config is of no known model, or the tensors do not match it.
    """
    config = ModelConfig.from_dict(message.config)
    start, stop = message.layers
    if message.tower:
        _check_tower(message, config)
    is_alone = message.tower and (start, stop) == (0, 0)
    if not is_alone and not 0 <= start < stop <= config.num_layers:
        raise BrokenModelError(f"The model has {config.num_layers} layers, not {start} to {stop}.")
    # Random weights are made on this computer.
    is_sent = message.seed is None
    return _checked(message, config, range(start, stop) if is_sent else (), is_sent=is_sent)


def check_spares(message: Keep) -> dict[Digest, Content]:
    """Check that spare copies are exactly those that the config demands for their layers.

    Returns:
        The tensors by digest.

    Raises:
        ModelError: the config is of no known model, or the tensors do not match it.
    """
    config = ModelConfig.from_dict(message.config)
    if any(layer >= config.num_layers for layer in message.layers):
        raise BrokenModelError(f"The model has {config.num_layers} layers, and no others.")
    return _checked(message, config, message.layers)


def _checked(
    message: Assign | Keep, config: ModelConfig, layers: Sequence[int], *, is_sent: bool = True
) -> dict[Digest, Content]:
    slices = _slices(message, config, layers)
    wanted = config.stage_tensors(
        layers,
        embedding=message.embedding and is_sent,
        head=message.head and is_sent,
        tower=isinstance(message, Assign) and message.tower and is_sent,
    )
    given = {info.name: info for info in message.tensors}
    marked = [info.name for info in message.tensors if info.whole is not None]
    parts = find_slices(config, wanted, slices, given, marked)
    wanted |= {name: part.shape for name, part in parts.items()}
    stored = find_stored(config, wanted, given, scheme=message.scheme, where="the assignment")
    if sum(map(len, stored.values())) != len(message.tensors):
        raise BrokenModelError("The tensors of the assignment are not those of its layers.")
    return {Digest(info.digest): Content(info, parts.get(info.name)) for info in message.tensors}


def _slices(
    message: Assign | Keep, config: ModelConfig, layers: Sequence[int]
) -> dict[str, TensorSlice]:
    """What a rank has of the tensors of these layers."""
    if (share := message.share) is None:
        return {}
    if share.rank >= len(share.shares):
        raise BrokenModelError(f"The group has {len(share.shares)} ranks, and none {share.rank}.")
    own = Share(rank=share.rank, parts=share.shares)
    return stage_slices(config, layers, own, message.scheme)


def _check_tower(message: Assign, config: ModelConfig) -> None:
    """Check that a vision tower is alone, or beside layers of a stage that would have none."""
    if config.tower is None:
        raise BrokenModelError("The model reads no pictures, and a vision tower was assigned.")
    has_more = message.embedding or message.share is not None
    if has_more or (message.head and message.layers == (0, 0)):
        raise BrokenModelError("A vision tower was assigned together with other parts.")
