"""How one token goes through the layers of a stage: in runs that are graphs, or generated, or layer by layer."""

from collections.abc import Sequence

from potluck.engine.accelerator import Graphs, graph_runs
from potluck.engine.device import CacheForm
from potluck.engine.generated.singles import as_generated
from potluck.engine.kernels import Kernels
from potluck.engine.layers.blocks import DecoderLayer, LayerRun, Run


def make_runs(
    blocks: Sequence[DecoderLayer],
    graphs: Graphs | None,
    kernels: Kernels | None,
    cache: CacheForm,
) -> tuple[Run, ...]:
    """Cut the layers into runs.

    Args:
        blocks: all layers of the stage.
        graphs: of a GPU that has them.
        kernels: those for single tokens, on a CPU.
        cache: the form of keys and values.
    """
    if graphs is not None:
        return graph_runs(blocks, graphs)
    if (generated := as_generated(kernels)) is None:
        return (LayerRun(0, blocks),)
    # Imported late: it brings llvmlite, which does not load on every computer.
    from potluck.engine.generated.run import cut_into_runs

    return cut_into_runs(blocks, generated, cache)
