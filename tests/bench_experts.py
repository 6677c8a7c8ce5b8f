"""How long a mixture's experts take, all at once and one by one: `python tests/bench_experts.py`. Not a test.

    --threads 1     threads of the kernels
    --rounds 5      pairs of both, in turns; the median of their ratios counts

The experts have the shapes of Qwen3-30B-A3B, Mixtral (an eighth of its width) and OLMoE, with random weights.
"""

import argparse
import statistics
import time

import torch

from potluck.engine.kernels import Router
from potluck.engine.kernels.called.experts import PackedExpert, PackedExperts
from potluck.engine.kernels.called.generated import GeneratedKernels, host_paths
from potluck.engine.layers.linear import PackedLinear
from potluck.engine.layers.mlp import MoE, PackedMlp
from potluck.engine.pages import Scratch
from potluck.model.formats import INT4
from potluck.model.routing import Routing

# Experts, experts of a token, hidden size, size of an expert.
SHAPES = {
    "qwen3-30b-a3b": (128, 8, 2048, 768),
    "mixtral / 8": (8, 2, 4096, 1792),
    "olmoe": (64, 8, 2048, 1024),
}
TOKENS = (2, 16, 64, 256, 512)


def mixtures(kernels: GeneratedKernels, shape: tuple[int, int, int, int]) -> tuple[MoE, MoE]:
    """A mixture that computes its experts at once, and the same one by one."""
    count, per_token, hidden, size = shape
    scratch = Scratch()

    def linear(rows: int, width: int) -> PackedLinear:
        return PackedLinear(kernels.pack(torch.randn(rows, width), INT4), None, kernels)

    pairs = [(linear(2 * size, hidden), linear(hidden, size)) for _ in range(count)]
    mlps = [PackedMlp(gate_up, down, "silu", scratch) for gate_up, down in pairs]
    routing = Routing(count=count, per_token=per_token, normalise=True)
    router = Router(torch.randn(count, hidden), None, routing)
    packed = [PackedExpert(gate_up=up.weight, down=down.weight) for up, down in pairs]
    together = PackedExperts(packed, "silu", kernels, scratch)
    one_by_one = MoE(router, mlps, route=kernels.route)
    return MoE(router, mlps, route=kernels.route, together=together), one_by_one


def seconds(mixture: MoE, x: torch.Tensor) -> float:
    start = time.perf_counter()
    mixture(x)
    return time.perf_counter() - start


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kernels = GeneratedKernels(host_paths()[0], options.threads)
    print(f"{'':16}{'tokens':>8}{'at once, ms':>14}{'of one by one':>16}")
    for name, shape in SHAPES.items():
        at_once, one_by_one = mixtures(kernels, shape)
        for tokens in TOKENS:
            x = torch.randn(tokens, shape[2])
            for each in (at_once, one_by_one):
                seconds(each, x)
            pairs = [(seconds(at_once, x), seconds(one_by_one, x)) for _ in range(options.rounds)]
            ratio = statistics.median(mine / theirs for mine, theirs in pairs)
            best = 1000 * min(mine for mine, _ in pairs)
            print(f"{name:16}{tokens:8}{best:14.1f}{ratio:16.2f}")


if __name__ == "__main__":
    main()
