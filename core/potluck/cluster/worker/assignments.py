"""Check what a master assigns."""

from potluck.errors import BrokenModelError
from potluck.ids import Digest
from potluck.model.config import ModelConfig
from potluck.model.stored import find_stored
from potluck.wire.messages import Assign, TensorInfo


def check_assignment(message: Assign) -> dict[Digest, TensorInfo]:
    """Check that the tensors are exactly those that the config demands for these layers.

    Returns:
        The tensors by digest.

    Raises:
        ModelError: the config is of no known model, or the tensors do not match it.
    """
    config = ModelConfig.from_dict(message.config)
    start, stop = message.layers
    if not 0 <= start < stop <= config.num_layers:
        raise BrokenModelError(f"The model has {config.num_layers} layers, not {start} to {stop}.")
    wanted = config.stage_tensors(
        range(start, stop), embedding=message.embedding, head=message.head
    )
    if message.seed is not None:
        wanted = {}  # random weights are made on this computer
    given = {info.name: info for info in message.tensors}
    stored = find_stored(config, wanted, given, scheme=message.scheme, where="the assignment")
    if sum(map(len, stored.values())) != len(message.tensors):
        raise BrokenModelError("The tensors of the assignment are not those of its layers.")
    return {Digest(info.digest): info for info in message.tensors}
