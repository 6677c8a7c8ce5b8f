"""How fast the generated kernels are on this computer: `python tests/bench_kernels.py`. Not a test.

    --paths avx512vnni,avx2   which (all that the processor has)
    --threads 1               of the pool
    --rounds 9                of which the best counts

Weights are those of a Llama-3.2-1B, each matrix in enough copies that none is in a cache when its turn
comes. One token: gigabytes of packed weights a second, beside what a kernel that only reads gets in the
same round. Many tokens: tokens a second if a model were its 16 layers' products and nothing else.

One core of an AMD EPYC of family 26 (Zen 5, 2 cores, shared with other work: the best seen), AVX-512 VNNI:

                                        int4            int8
    pack, MB/s of bf16                  2700            6600
    1 token, GB/s; reading gets 39      37-40           36-40
    a decode step of a layer, 100 back  0.91 ms (96 %)  1.72 ms (94 %)
    many tokens, tokens/s               350             280

AVX2 there: packing 1600 and 6200; one token as above; many tokens a third and a fifth of the rate.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from potluck.engine.kernels.attention_kernel import Heads
from potluck.engine.kernels.decode import Decoder, LayerWeights
from potluck.engine.kernels.emit import KIND_BF16
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
DECODED_LAYERS = 6  # beyond any cache
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


def decode_layers(kernels: GeneratedKernels, bits: int, rounds: int) -> None:
    """A token through whole layers in one call, beside reading their weights."""
    rows = [(shape, kernels.pack(torch.randn(shape) * 0.02, bits)) for shape in LAYER.values()]
    layers: list[LayerWeights] = []
    for _ in range(DECODED_LAYERS):
        matrices = [PackedWeight.empty(*shape, bits) for shape, _ in rows]
        for matrix, (_, packed) in zip(matrices, rows, strict=True):
            matrix.data.copy_(packed.data)
        qkv, output, gate_up, down = matrices
        norm = torch.ones(qkv.width)
        layers.append(
            LayerWeights(
                input_norm=norm, qkv=qkv, qkv_bias=None, qk_norm=None, output=output,
                post_norm=norm, gate_up=gate_up, down=down, window=None,
            )
        )  # fmt: skip
    heads = Heads(
        heads=32, kv_heads=8, head_dim=64, rotary_dim=64, epsilon=1e-5, cache_kind=KIND_BF16
    )
    start = time.perf_counter()
    decoder = Decoder(kernels, layers, heads, 1e-5)
    print(f"  decode, compiled in {time.perf_counter() - start:8.2f} s")
    caches = [torch.zeros(2, 8, 1024, 64, dtype=torch.bfloat16) for _ in layers]
    cosines, sines = torch.ones(32), torch.zeros(32)
    hidden = torch.randn(1, 2048)
    weights = [
        one.data for layer in layers for one in (layer.qkv, layer.output, layer.gate_up, layer.down)
    ]

    def read() -> None:
        for data in weights:
            kernels.read(data)

    for position in (0, 100, 900):
        step = partial(decoder, hidden, caches, position, cosines, sines)
        pairs = [(seconds(step), seconds(read)) for _ in range(rounds)]
        decoding, reading = (min(column) / len(layers) for column in zip(*pairs, strict=True))
        print(
            f"  layer at {position:5}      {decoding * 1e6:8.0f} µs, reading {reading * 1e6:.0f}"
            f" ({reading / decoding:.0%})"
        )


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
    decode_layers(kernels, bits, rounds)
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
