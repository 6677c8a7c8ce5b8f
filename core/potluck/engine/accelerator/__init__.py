"""Computing on a GPU: packed weights by our own kernels or torch's products, and one token as a CUDA graph.

    make = choose_linear(device, dtype)       # tries products on the device
    linear = make(packed, bias)               # then the caller fills the packed bytes in RAM
    linear.place()                            # moves the filled matrix to the device
    ops = choose_ops(device, dtype)           # attention and norms that give right numbers there
    graphs = find_graphs(device)              # or None
    runs = graph_runs(blocks, graphs)         # one token through the layers
    log_capabilities(device)                  # all of these choices, in words

Rules. Every operator is tried on the device first. One that is missing or wrong is logged and not
used. All but the kernels in `nvidia/kernels.cu` is ordinary torch code that runs on the CPU too, where it is tested.
"""

from potluck.engine.accelerator.capabilities import log_capabilities
from potluck.engine.accelerator.graph_run import GraphedHead, graph_runs
from potluck.engine.accelerator.graphs import Graphs, find_graphs
from potluck.engine.accelerator.linears import MakeLinear, PlacedLinear
from potluck.engine.accelerator.nvidia.experts import experts_of
from potluck.engine.accelerator.ops import LayerOps, choose_ops
from potluck.engine.accelerator.probe import choose_linear

__all__ = [
    "GraphedHead",
    "Graphs",
    "LayerOps",
    "MakeLinear",
    "PlacedLinear",
    "choose_linear",
    "choose_ops",
    "experts_of",
    "find_graphs",
    "graph_runs",
    "log_capabilities",
]
