"""How fast the generated kernels are on this computer: `python tests/bench_kernels.py`. Not a test.

    --paths avx512vnni,avx2   which (all that the processor has)
    --threads 1               of the pool
    --rounds 9                of which the best counts

Weights are those of a Llama-3.2-1B, each matrix in enough copies that none is in a cache when its turn
comes. One token: gigabytes of packed weights a second, beside what a kernel that only reads gets in the
same round. Many tokens: tokens a second if a model were its 16 layers' products and nothing else.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from potluck.engine.kernels.generated import GeneratedKernels, host_paths
from potluck.engine.kernels.tensors import PackedWeight

LAYER = {
    "qkv": (3072, 2048),
    "output": (2048, 2048),
    "gate_up": (16384, 2048),
    "down": (2048, 8192),
}
HEAD = (128256, 2048)
LAYERS = 16
BEYOND_CACHES = 256e6  # bytes


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def copies(packed: PackedWeight) -> list[PackedWeight]:
    made = [packed]
    while sum(one.nbytes for one in made) < BEYOND_CACHES:
        copy = PackedWeight.empty(packed.rows, packed.width, packed.bits)
        copy.data.copy_(packed.data)
        made.append(copy)
    return made


def decode(
    kernels: GeneratedKernels, weights: list[PackedWeight], rounds: int
) -> tuple[float, float]:
    """Bytes a second of products, and of reading, the best of all rounds."""
    x = kernels.quantise(torch.randn(1, weights[0].width))
    out = torch.empty(1, weights[0].rows)
    total = sum(one.nbytes for one in weights)

    def multiply() -> None:
        for one in weights:
            kernels.multiply(one, x, out=out)

    def read() -> None:
        for one in weights:
            kernels.read(one.data)

    pairs = [(seconds(multiply), seconds(read)) for _ in range(rounds)]
    return total / min(pair[0] for pair in pairs), total / min(pair[1] for pair in pairs)


def prefill(
    kernels: GeneratedKernels, layer: list[PackedWeight], tokens: int, rounds: int
) -> float:
    """Tokens a second of one layer's products, inputs quantised as a layer does it."""

    def multiply() -> None:
        for one in layer:
            kernels.multiply(one, kernels.quantise(torch.empty(tokens, one.width).fill_(0.5)))

    return tokens / min(seconds(multiply) for _ in range(rounds))


def bench(kernels: GeneratedKernels, bits: int, rounds: int) -> None:
    print(f"\n{kernels.name} int{bits}")
    weight = torch.randn(4096, 2048).mul_(0.02).bfloat16()
    packing = min(seconds(lambda: kernels.pack(weight, bits)) for _ in range(rounds))
    print(f"  pack                {weight.nbytes / packing / 1e6:8.0f} MB/s of bf16")
    layer: list[PackedWeight] = []
    fractions: list[float] = []
    for name, (rows, width) in {**LAYER, "head": HEAD}.items():
        packed = kernels.pack(torch.randn(rows, width).mul_(0.02).bfloat16(), bits)
        products, reading = decode(kernels, copies(packed), rounds)
        fractions.append(products / reading)
        print(
            f"  1 token {name:8} {products / 1e9:10.1f} GB/s of {reading / 1e9:.1f}"
            f" ({products / reading:.0%})"
        )
        if name in LAYER:
            layer.append(packed)
    print(f"  1 token, median     {statistics.median(fractions):8.0%} of reading")
    for tokens in (16, 64, 256, 512):
        rate = prefill(kernels, layer, tokens, max(2, rounds // 3))
        print(f"  {tokens:4} tokens         {rate / LAYERS:8.0f} tokens/s of {LAYERS} layers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    known = {path.name: path for path in host_paths()}
    parser.add_argument("--paths", default=",".join(known))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.paths.split(","):
        kernels = GeneratedKernels(known[name], options.threads)
        for bits in (4, 8):
            bench(kernels, bits, options.rounds)
        kernels.close()


if __name__ == "__main__":
    main()
