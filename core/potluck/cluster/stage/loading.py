"""The weights that a stage process is told to load: from files, or random ones to measure with."""

from typing import TYPE_CHECKING

from potluck.cluster.processes.messages import LoadStage
from potluck.cluster.stage.packer import stored_tensor
from potluck.engine.builder import StageWeights
from potluck.engine.reading import Progress
from potluck.engine.weights import load_weights, random_weights
from potluck.model.config import ModelConfig

if TYPE_CHECKING:
    import torch


def stage_weights(
    message: LoadStage, device: "torch.device", progress: Progress, threads: int | None
) -> StageWeights:
    """Load or make them; `threads` read, None: as many as there are cores. For the errors see `load_weights`."""
    config, layers = ModelConfig.from_dict(message.config), range(*message.layers)
    if message.seed is not None:
        return random_weights(
            config,
            layers,
            embedding=message.embedding,
            head=message.head,
            scheme=message.scheme,
            cache=message.cache,
            device=device,
            seed=message.seed,
            progress=progress,
        )
    return load_weights(
        config,
        layers,
        embedding=message.embedding,
        head=message.head,
        tensors=map(stored_tensor, message.tensors),
        scheme=message.scheme,
        cache=message.cache,
        device=device,
        progress=progress,
        threads=threads,
    )
