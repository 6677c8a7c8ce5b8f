"""Load a stage's weights from tensors on disk, or make random ones to measure with.

A `Reader` fills the matrices that `builder.py` allocates, so that loading never holds a second copy of the
model.
"""

from collections.abc import Callable, Iterable, Sequence
from math import prod

import torch

from potluck.engine.kernels.layout import ROWS
from potluck.engine.layers.row_table import TableTarget
from potluck.engine.loading.builder import build_weights
from potluck.engine.loading.reading import PIECE, Progress, Reader, StoredTensor
from potluck.engine.loading.slices import SlicedTarget
from potluck.engine.loading.stage_weights import StageWeights
from potluck.engine.loading.targets import Target
from potluck.engine.memory import out_of_memory
from potluck.errors import InvalidLayersError
from potluck.model.checkpoint.stored import find_stored
from potluck.model.config import ModelConfig, Shape
from potluck.model.schemes import Cache, Scheme
from potluck.model.shares import Share, rank_config
from potluck.model.stored_slices import find_slices, stage_slices
from potluck.model.vision.spec import is_of_tower
from potluck.system.processor import usable_cores

_MOST_THREADS = 8  # each reads and digests 1 to 2 GB/s; eight are faster than the disks of a home


def load_weights(
    config: ModelConfig,
    layers: range,
    *,
    embedding: bool,
    head: bool,
    tower: bool = False,
    tensors: Iterable[StoredTensor],
    scheme: Scheme,
    device: torch.device,
    cache: Cache = "full",
    progress: Progress | None = None,
    threads: int | None = None,
    kept: StageWeights | None = None,
    share: Share | None = None,
) -> StageWeights:
    """Load a stage's weights, except those in `kept`. Tensors of other stages are ignored.

    Args:
        config: of the whole model.
        layers: of the stage.
        embedding: whether it has the embedding.
        head: whether it has the final norm and the head.
        tower: whether it has the vision tower, which is also beside the embedding.
        tensors: those that are stored, whole or as the slice that a rank of this share has.
        scheme: how the weights are held.
        device: the device of the weights.
        cache: how keys and values are held.
        progress: is told how much is read.
        threads: that read; None: as many as pay.
        kept: what is loaded already; layers of another share are not used.
        share: what a rank of a group holds of each layer. None: all of it.

    Raises:
        InvalidLayersError: the model has no such layers.
        BrokenModelError: a tensor is missing, or has a dtype or shape that the config does not.
        IntegrityError: a file's bytes do not have their digest; `data["digest"]` is that digest.
        OutOfMemoryError: the device has no room for these layers.
        OSError: a file cannot be read.
    """
    if not 0 <= layers.start <= layers.stop <= config.num_layers:
        raise InvalidLayersError(
            f"The model has {config.num_layers} layers, and {layers.start} to {layers.stop} were"
            " asked for.",
        )
    if kept is not None and kept.share != share:
        kept = kept.keep((), embedding=True, head=True)  # every rank has these whole
    needed = _missing_tensors(config, layers, embedding, head, tower, kept)
    found = {tensor.name: tensor for tensor in tensors}
    slices = {} if share is None else stage_slices(config, layers, share, scheme)
    cut = find_slices(config, needed, slices, found, [t.name for t in found.values() if t.is_slice])
    shapes = needed | {name: one.shape for name, one in cut.items()}
    stored = find_stored(config, shapes, found, scheme=scheme, where="the store")
    total = sum(tensor.nbytes for parts in stored.values() for tensor in parts)
    reader = Reader(config, total, progress, threads or min(_MOST_THREADS, usable_cores()))

    def own(name: str, target: Target) -> Target:
        part = cut[name].within if name in cut else slices.get(name)
        return target if part is None else SlicedTarget(target, part, shapes[name])

    with out_of_memory("load these layers", device), reader:
        return build_weights(
            rank_config(config, share, scheme),
            layers,
            embedding=embedding,
            head=head,
            tower=tower,
            scheme=scheme,
            device=device,
            cache=cache,
            kept=kept,
            share=share,
            fill=lambda targets: reader.begin(
                (stored[name], own(name, target)) for name, target in targets
            ),
        )


def random_weights(
    config: ModelConfig,
    layers: Sequence[int],
    *,
    embedding: bool,
    head: bool,
    tower: bool = False,
    scheme: Scheme,
    device: torch.device,
    cache: Cache = "full",
    seed: int = 0,
    progress: Progress | None = None,
    kept: StageWeights | None = None,
) -> StageWeights:
    """Make random weights as fast as memory can be written. They compute as fast as real ones.

    Raises:
        OutOfMemoryError: the device has no room for these layers.
    """
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(PIECE, generator=generator).mul_(0.02).bfloat16()
    tensors = _missing_tensors(config, layers, embedding, head, tower, kept)
    done, total = 0, sum(map(prod, tensors.values()))

    def fill(targets: list[tuple[str, Target]]) -> Callable[[], None]:
        nonlocal done
        for name, target in targets:
            if config.is_id_table(name):  # each id has as many experts as in a real model
                target.fill(0, torch.arange(target.width).expand(target.rows, -1))
            else:
                _fill(target, numbers)
            done += target.rows * target.width
            if progress is not None:
                progress(done, total)
        return lambda: None

    with out_of_memory("make these layers", device):
        return build_weights(
            config,
            layers,
            embedding=embedding,
            head=head,
            tower=tower,
            scheme=scheme,
            device=device,
            cache=cache,
            kept=kept,
            fill=fill,
        )


def _missing_tensors(
    config: ModelConfig,
    layers: Sequence[int],
    embedding: bool,
    head: bool,
    tower: bool,
    kept: StageWeights | None,
) -> dict[str, Shape]:
    """The tensors that a stage needs and has not kept, and their shapes."""
    if kept is not None:
        layers = [layer for layer in layers if layer not in kept.layers]
        embedding = embedding and kept.embedding is None
        head = head and kept.lm_head is None
        tower = tower and kept.tower is None
    tensors = config.stage_tensors(layers, embedding=embedding, head=head, tower=tower)
    if kept is not None and kept.tower is not None:
        tensors = {name: shape for name, shape in tensors.items() if not is_of_tower(name)}
    return tensors


def _fill(target: Target, numbers: torch.Tensor) -> None:
    """Fill a target with the same rows again and again; packed bytes are copied, not packed again."""
    if isinstance(target, TableTarget):
        target.table.read_from(numbers)
        return
    blocks = max(1, PIECE // max(1, target.width * ROWS))  # of rows, about as large as a piece
    rows = min(blocks, -(-target.rows // ROWS)) * ROWS
    piece = numbers.repeat(-(-rows * target.width // PIECE))[: rows * target.width]
    piece = piece.view(rows, target.width)
    target.fill(0, piece[: target.rows])
    packed = target.packed
    nbytes = 0 if packed is None else packed.format.nbytes(rows, target.width)
    for number, first in enumerate(range(rows, target.rows, rows), 1):
        if packed is not None and first + rows <= target.rows:
            packed.data[number * nbytes :][:nbytes] = packed.data[:nbytes]
        else:
            target.fill(first, piece[: target.rows - first])
