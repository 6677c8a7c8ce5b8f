"""Computing on a GPU: packed weights with torch's products, and one token as a CUDA graph.

    make = choose_linear(device, dtype)       # tries torch's products there
    linear = make(packed, bias)               # packed bytes on the CPU, to be filled; then
    linear.place()                            # matrix by matrix
    pieces = choose_pieces(device, dtype)     # attention and norms that are right there
    graphs = find_graphs(device)              # or None
    runs = graph_runs(blocks, graphs)         # one token through the layers
    capabilities(device)                      # all of it in words

Rules. What is missing or wrong on a device is found when it is tried, noted, and done without. Whatever
runs there is ordinary torch code that runs on the CPU too, and is tested there.
"""

from potluck.engine.accelerator.capabilities import Capabilities, capabilities
from potluck.engine.accelerator.graph_run import GraphedHead, graph_runs
from potluck.engine.accelerator.graphs import find_graphs
from potluck.engine.accelerator.linears import MakeLinear, PlacedLinear
from potluck.engine.accelerator.pieces import Pieces, choose_pieces
from potluck.engine.accelerator.probe import choose_linear

__all__ = [
    "Capabilities",
    "GraphedHead",
    "MakeLinear",
    "Pieces",
    "PlacedLinear",
    "capabilities",
    "choose_linear",
    "choose_pieces",
    "find_graphs",
    "graph_runs",
]
