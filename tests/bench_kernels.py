"""How fast the generated kernels are on this computer: `python tests/bench_kernels.py`. Not a test.

    --paths avx512vnni,avx2   the code paths to measure (default: all that the processor has)
    --threads 1               threads of the kernels
    --rounds 9                rounds; the best one counts
    --only-layers             measure only the parts of whole layers

Weights have the shapes of a Llama-3.2-1B. Each matrix exists in so many copies that none is in a
cache when it is used. "1 token" is gigabytes of packed weights per second, beside those of a kernel
that only reads, in the same round. "Many tokens" is tokens per second, if a model consisted of the
products of its 16 layers. Then come whole layers, of a Qwen2.5-0.5B too: which part takes how long
with many tokens and with one. The time of attention is that of a step less that of a step with an
empty cache.

One core of an AMD EPYC of family 26 (Zen 5, 2 cores, shared with other work: the best seen), AVX-512 VNNI:

                                        int4            int8
    pack, MB/s of bf16                  2700            6600
    1 token, GB/s; reading gets 39      37-40           36-40
    many tokens, tokens/s               350             280

    one token, µs a layer             reading  at 100  at 900 | quantise    rope  attention at 900
    Llama int4, cache of f16              829     879     946 |      8.3     0.3                58
                cache of int8             828     883     946 |      8.8     0.4                52
    Llama int8, cache of f16             1531    1624    1690 |      8.4     0.3                76
    Qwen  int4, cache of f16              204     220     258 |      5.6     0.2                36
                cache of int8             210     226     251 |      5.6     0.3                27
    Qwen  int8, cache of f16              394     421     463 |      5.7     0.3                42
                cache of int8             395     417     446 |      5.6     0.3                28

Each figure is the best of its own. The rest of a step is its products, which take as long by
themselves, within the noise of 5 %. The keys and values of 900 tokens are 1.8 MB of f16 in a Llama
layer: reading them takes 61 µs. Since these figures, products and attention prefetch what they read
next. Measured when the machine was slower, reading, at 100 and at 900: Llama int4 911, 948, 987;
Llama int8 1613, 1690, 1719; Qwen int4 218, 230, 252.

Since attention is shared by panels of 256 cached tokens and no longer by key heads, one token's attention takes of
what it took before (heads/key heads/head size; medians of alternated pairs on a machine with other work):

    cached tokens            32/8/64 f16, 100   900  int8, 900  14/2/64 f16, 900  8/1/256 f16, 2000  int8, 2000
    1 thread                             1.00  1.05       0.98              1.01               0.84
    2 threads                                  1.01                                            0.82        0.50

    many tokens, int4, ms a layer     products  attention  gate  norms, quantise, residuals    rope
    Llama, 128                            22.1       0.94  0.88                        0.65    0.18
           128 after 512                  22.5       4.10  0.88                        0.66    0.18
           256 after 512                  44.9       8.75  1.78                        1.26    0.30
           256 after 4096                 44.6       53.2  1.79                        1.21    0.33
    Qwen,  128                             5.3       0.34  0.51                        0.26    0.08
           256 after 4096                 10.8       23.1  1.18                        0.69    0.18

On the same machine, torch's attention takes 1.9, 8.9 and 20 ms in the first three rows. For 128
tokens after 4000 it takes 56 ms, these kernels 25 ms.

With AVX2 on the same machine, packing gets 1600 and 6200 MB/s, one token is as above, and many
tokens get a third and a fifth of the rate.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from potluck.engine.kernels.attending.attention import Heads
from potluck.engine.kernels.attending.attention_fields import KINDS
from potluck.engine.kernels.attending.cache import cached_width
from potluck.engine.kernels.called.generated import GeneratedKernels, host_paths
from potluck.engine.kernels.decoding.decode import Decoder
from potluck.engine.kernels.decoding.layer_weights import LayerWeights, layer_shape
from potluck.engine.kernels.products.tensors import Angles, PackedWeight, QuantisedInput
from potluck.model.families.facts import PRE_NORMS
from potluck.model.formats import PACKED_FORMATS, PackedFormat


@dataclass(frozen=True)
class Model:
    """The shape of a model's layers."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def attended(self) -> int:
        return self.heads * self.head_dim

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        return {
            "qkv": (self.attended + 2 * self.kv_heads * self.head_dim, self.hidden),
            "output": (self.hidden, self.attended),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }

    def attention(self, dtype: torch.dtype) -> Heads:
        return Heads(
            heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim,
            rotary_dim=self.head_dim, qk_norm=None, epsilon=1e-5, scale=self.head_dim**-0.5,
            softcap=None, cache_kind=KINDS[dtype],
        )  # fmt: skip


LLAMA = Model("llama-3.2-1b", 2048, 8192, 32, 8, 64)
QWEN = Model("qwen2.5-0.5b", 896, 4864, 14, 2, 64)
HEAD = (128256, 2048)
LAYERS = 16
REPEATED = 200  # what takes a microsecond
BEYOND_CACHES = 256e6  # bytes


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def copies(packed: PackedWeight) -> list[PackedWeight]:
    made = [packed]
    while sum(one.nbytes for one in made) < BEYOND_CACHES:
        copy = PackedWeight.empty(packed.rows, packed.width, packed.format)
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


def random_layers(
    kernels: GeneratedKernels, model: Model, weight_format: PackedFormat
) -> list[LayerWeights]:
    """More than fit a cache, with the same numbers in each."""
    packed = [
        kernels.pack(torch.randn(shape) * 0.02, weight_format) for shape in model.matrices.values()
    ]
    layers: list[LayerWeights] = []
    for _ in range(1 + int(BEYOND_CACHES / sum(matrix.nbytes for matrix in packed))):
        matrices = [PackedWeight.empty(one.rows, one.width, weight_format) for one in packed]
        for matrix, one in zip(matrices, packed, strict=True):
            matrix.data.copy_(one.data)
        qkv, output, gate_up, down = matrices
        norms = PRE_NORMS.map(lambda _: torch.ones(model.hidden))
        layers.append(LayerWeights(norms=norms, qkv=qkv, output=output, gate_up=gate_up, down=down))
    return layers


class LayerParts:
    """A decode step of all layers, and its parts, each of which can be measured alone."""

    def __init__(
        self,
        kernels: GeneratedKernels,
        model: Model,
        weight_format: PackedFormat,
        dtype: torch.dtype,
        capacity: int = 1024,
    ) -> None:
        self.kernels, self.heads = kernels, model.attention(dtype)
        self.layers = random_layers(kernels, model, weight_format)
        self.decoder = Decoder(
            kernels, self.layers, layer_shape(self.layers[0], self.heads, epsilon=1e-5)
        )
        width = cached_width(self.heads.head_dim, dtype)
        self.caches = [
            torch.zeros((2, self.heads.kv_heads, capacity, width), dtype=dtype) for _ in self.layers
        ]
        ones = torch.ones(self.heads.rotary_dim)
        self.angles = [Angles(ones, ones)]
        self.hidden, self.attended = torch.randn(1, model.hidden), torch.randn(1, model.attended)
        self.gate_up = torch.randn(1, 2 * model.intermediate)
        self.qkv = torch.randn(1, model.matrices["qkv"][0])
        self.nothing = torch.zeros(1, 1)
        self.no_weight = kernels.pack(self.nothing, weight_format)
        self.no_input = kernels.quantise(self.nothing)
        self.inputs = {
            width: kernels.quantise(torch.randn(1, width))
            for width in (model.hidden, model.attended, model.intermediate)
        }
        self.outputs = {rows: torch.empty(1, rows) for rows, _ in model.matrices.values()}
        self.weights = [
            matrix
            for layer in self.layers
            for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down)
            if isinstance(matrix, PackedWeight)
        ]

    def step(self, position: int) -> None:
        self.decoder(self.hidden, self.caches, position, self.angles)

    def read(self) -> None:
        for matrix in self.weights:
            self.kernels.read(matrix.data)

    def products(self) -> None:
        for matrix in self.weights:
            self.kernels.multiply(matrix, self.inputs[matrix.width], out=self.outputs[matrix.rows])

    def quantise(self) -> None:
        """Quantise once what one layer quantises, but for its norms."""
        self.kernels.quantise(self.hidden)
        self.kernels.quantise(self.attended)
        self.kernels.quantise(self.hidden)
        self.kernels.quantise_gated(self.gate_up)

    def quantise_nothing(self) -> None:
        """Make such a call almost without work, to measure the call itself."""
        self.kernels.quantise(self.nothing)

    def multiply_nothing(self) -> None:
        self.kernels.multiply(self.no_weight, self.no_input, out=self.nothing)

    def rope(self) -> None:
        self.kernels.rope_and_cache(self.heads, self.qkv, self.caches[0], 0, self.angles[0], None)


def decode_layers(
    kernels: GeneratedKernels,
    model: Model,
    weight_format: PackedFormat,
    dtype: torch.dtype,
    rounds: int,
) -> None:
    """Time one token through whole layers in one call, its parts, and reading the weights."""
    start = time.perf_counter()
    parts = LayerParts(kernels, model, weight_format, dtype)
    steps = [partial(parts.step, position) for position in (0, 100, 900)]
    small = (
        parts.quantise,
        parts.quantise_nothing,
        parts.multiply_nothing,
        parts.rope,
    )
    actions = [*steps, parts.read, parts.products, *(partial(repeat, action) for action in small)]
    rows = [[seconds(action) for action in actions] for _ in range(rounds)]
    best = [min(column) * 1e6 for column in zip(*rows, strict=True)]
    empty, near, far, reading, products = (one / len(parts.layers) for one in best[:5])
    quantise, no_quantise, no_multiply, rope = (one / REPEATED for one in best[5:])
    products -= 4 * no_multiply
    quantise, rope = quantise - 4 * no_quantise, rope - no_quantise
    rest = empty - products - quantise - rope
    print(
        f"  {model.name} {str(dtype)[6:]}: {near:.0f} µs a layer at 100 ({reading / near:.0%}),"
        f" {far:.0f} at 900 ({reading / far:.0%}); reading {reading:.0f}, products {products:.0f},"
        f" quantise {quantise:.1f}, rope {rope:.1f}, attention {near - empty:.1f} and"
        f" {far - empty:.1f}, rest {rest:.1f}; measured in {time.perf_counter() - start:.0f} s"
    )


def prefill_layer(
    kernels: GeneratedKernels, model: Model, weight_format: PackedFormat, rounds: int
) -> None:
    """Time the parts of a layer with many tokens, and with keys and values in f16."""
    heads = model.attention(torch.float16)
    matrices = [
        kernels.pack(torch.randn(shape) * 0.02, weight_format) for shape in model.matrices.values()
    ]
    norm = torch.ones(model.hidden)
    for tokens, position in ((128, 0), (128, 512), (256, 0), (256, 512), (256, 4096)):
        hidden = torch.randn(tokens, model.hidden)
        qkv = torch.randn(tokens, model.matrices["qkv"][0])
        gate_up = torch.randn(tokens, 2 * model.intermediate)
        inputs = {
            width: kernels.quantise(torch.randn(tokens, width))
            for width in (model.hidden, model.attended, model.intermediate)
        }
        cache = torch.zeros(
            (2, model.kv_heads, position + tokens, model.head_dim), dtype=torch.float16
        )
        angles = Angles(torch.ones(tokens, model.head_dim), torch.zeros(tokens, model.head_dim))

        def products(inputs: dict[int, QuantisedInput] = inputs) -> None:
            for matrix in matrices:
                kernels.multiply(matrix, inputs[matrix.width])

        def others(hidden: Tensor = hidden) -> None:
            """Compute two norms, quantise the inputs of the matrices, and add two residuals."""
            for _ in range(2):
                kernels.quantise(torch.rms_norm(hidden, norm.shape, norm, 1e-5))
                hidden.add_(hidden, alpha=1e-6)
            kernels.quantise(hidden)

        parts: dict[str, Callable[[], object]] = {
            "products": products,
            "attention": partial(kernels.attend, heads, qkv, cache, position, None),
            "gate": partial(kernels.quantise_gated, gate_up),
            "norms, quantise, residuals": others,
            "rope": partial(kernels.rope_and_cache, heads, qkv, cache, position, angles, None),
        }
        rows = [[seconds(action) for action in parts.values()] for _ in range(rounds)]
        best = [min(column) * 1e3 for column in zip(*rows, strict=True)]
        shares = ", ".join(f"{name} {ms:.2f}" for name, ms in zip(parts, best, strict=True))
        print(f"  {model.name}, {tokens} tokens after {position}: {shares}; {sum(best):.1f} ms")


def repeat(action: Callable[[], object]) -> None:
    for _ in range(REPEATED):
        action()


def bench(kernels: GeneratedKernels, weight_format: PackedFormat, rounds: int) -> None:
    print(f"\n{kernels.name} {weight_format.name}")
    weight = torch.randn(4096, 2048).mul_(0.02).bfloat16()
    packing = min(seconds(lambda: kernels.pack(weight, weight_format)) for _ in range(rounds))
    print(f"  pack                {weight.nbytes / packing / 1e6:8.0f} MB/s of bf16")
    layer: list[PackedWeight] = []
    fractions: list[float] = []
    for name, (rows, width) in {**LLAMA.matrices, "head": HEAD}.items():
        packed = kernels.pack(torch.randn(rows, width).mul_(0.02).bfloat16(), weight_format)
        products, reading = decode(kernels, copies(packed), rounds)
        fractions.append(products / reading)
        print(
            f"  1 token {name:8} {products / 1e9:10.1f} GB/s of {reading / 1e9:.1f}"
            f" ({products / reading:.0%})"
        )
        if name != "head":
            layer.append(packed)
    print(f"  1 token, median     {statistics.median(fractions):8.0%} of reading")
    for tokens in (16, 64, 256, 512):
        rate = prefill(kernels, layer, tokens, max(2, rounds // 3))
        print(f"  {tokens:4} tokens         {rate / LAYERS:8.0f} tokens/s of {LAYERS} layers")


def bench_layers(kernels: GeneratedKernels, weight_format: PackedFormat, rounds: int) -> None:
    print(f"\n{kernels.name} {weight_format.name}, whole layers")
    for model in (LLAMA, QWEN):
        prefill_layer(kernels, model, weight_format, max(2, rounds // 3))
        for dtype in (torch.float16, torch.int8):
            decode_layers(kernels, model, weight_format, dtype, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    known = {path.name: path for path in host_paths()}
    parser.add_argument("--paths", default=",".join(known))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only-layers", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.paths.split(","):
        kernels = GeneratedKernels(known[name], options.threads)
        for weight_format in PACKED_FORMATS:
            if not options.only_layers:
                bench(kernels, weight_format, options.rounds)
            bench_layers(kernels, weight_format, options.rounds)
        kernels.close()


if __name__ == "__main__":
    main()
