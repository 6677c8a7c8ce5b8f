"""How fast attention is at depth on this computer: `python tests/bench_attention.py`. Not a test.

    --depths 4096,16384       cached tokens
    --caches f16,bf16,int8    what the caches hold
    --shapes llama-1b,…       of the layers, by the names below (default: all)
    --path avx2               the code path (default: the best that the processor has)
    --rounds 7                rounds; the best one counts
    --tokens 128              of the chunk whose attention is measured after the cached tokens; 0: none
    --only-layers             measure whole layers instead, in int4

For each shape, cache and depth: how long attention of one token takes, beside a kernel that only reads the
same bytes of keys and values, in the same round; and how many multiplications and additions a second it does for
a chunk. Several caches are used in turn, so that none is in the processor's caches when it is read. Times are
those that the thread had the processor, so that other work on the computer counts less.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from bench_kernels import LLAMA, QWEN, LayerParts, Model
from potluck.engine.kernels.attending.attention import Heads
from potluck.engine.kernels.attending.attention_fields import KINDS
from potluck.engine.kernels.called.generated import GeneratedKernels, host_paths
from potluck.model.formats import INT4

BEYOND_CACHES = 128e6  # bytes
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "int8": torch.int8}
# Heads, key heads, head size, and of latent attention how many numbers of a row are the value.
SHAPES = {
    "olmo, 1 head of a key head, 128": (16, 16, 128, None),
    "smollm-135m, 3, 64": (9, 3, 64, None),
    "llama-1b, 4, 64": (32, 8, 64, None),
    "llama-8b, 4, 128": (32, 8, 128, None),
    "qwen-0.5b, 7, 64": (14, 2, 64, None),
    "gpt-oss, 8, 64": (64, 8, 64, None),
    "qwen3-30b, 8, 128": (32, 4, 128, None),
    "qwen3-next, 8, 256": (16, 2, 256, None),
    "deepseek-v2-lite, latent, 16": (16, 1, 576, 512),
    "deepseek-v3, latent, 128": (128, 1, 576, 512),
}

MODELS = (QWEN, LLAMA, Model("llama-3.1-8b", 4096, 14336, 32, 8, 128))


def make_heads(name: str, dtype: torch.dtype) -> Heads:
    heads, kv_heads, head_dim, rank = SHAPES[name]
    return Heads(
        heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        rotary_dim=head_dim if rank is None else head_dim - rank, qk_norm=None, epsilon=1e-5,
        scale=head_dim**-0.5, softcap=None, cache_kind=KINDS[dtype], rank=rank,
    )  # fmt: skip


def make_cache(shape: Heads, tokens: int, dtype: torch.dtype) -> Tensor:
    """A cache with random numbers; of int8 random integers, and after them whatever scales, but small ones."""
    parts = 1 if shape.rank else 2
    width = shape.cached_bytes // dtype.itemsize
    if dtype != torch.int8:
        return torch.randn(parts, shape.kv_heads, tokens, width).to(dtype)
    cache = torch.randint(-127, 128, (parts, shape.kv_heads, tokens, width), dtype=dtype)
    scale = torch.tensor([0.01]).view(torch.int8)
    for end in {shape.value_dim + 4, width}:
        cache[..., end - 4 : end] = scale
    return cache


def seconds(action: Callable[[], object]) -> float:
    start = time.thread_time()
    action()
    return time.thread_time() - start


def measure(
    kernels: GeneratedKernels, name: str, dtype: torch.dtype, depth: int, tokens: int, rounds: int
) -> None:
    shape = make_heads(name, dtype)
    first = make_cache(shape, depth + tokens + 1, dtype)
    caches = [first, *(first.clone() for _ in range(int(BEYOND_CACHES / first.nbytes)))]
    used = depth * shape.kv_heads * shape.cached_bytes * len(first)
    q = torch.randn(1, shape.row_numbers)

    def each(action: Callable[[Tensor], object]) -> None:
        for cache in caches:
            action(cache)

    def attend(cache: Tensor) -> None:
        kernels.attend(shape, q, cache, depth - 1, None)

    pairs = [
        (seconds(partial(each, kernels.read)), seconds(partial(each, attend)))
        for _ in range(rounds)
    ]
    read = min(pair[0] for pair in pairs) * used / first.nbytes / len(caches)
    one = min(pair[1] for pair in pairs) / len(caches)
    many = ""
    if tokens:
        chunk = torch.randn(tokens, shape.row_numbers)
        took = min(
            seconds(partial(kernels.attend, shape, chunk, first, depth, None))
            for _ in range(max(2, rounds // 3))
        )
        pairs_of_tokens = tokens * depth + tokens * (tokens + 1) / 2
        work = pairs_of_tokens * shape.heads * (shape.head_dim + shape.value_dim)
        many = f"   {tokens} tokens: {took * 1e3:7.1f} ms, {work / took / 1e9:5.1f} G/s"
    print(
        f"{name:32} {str(dtype)[6:]:9} {depth:6}  {one * 1e6:7.0f} µs, reading {read * 1e6:7.0f}"
        f" ({used / read / 1e9:4.1f} GB/s): {read / one:4.0%}{many}",
        flush=True,
    )


def measure_layers(
    kernels: GeneratedKernels, model: Model, dtype: torch.dtype, depth: int, rounds: int
) -> None:
    """Time one token through whole layers, beside reading their weights and caches: the floor of a token."""
    parts = LayerParts(kernels, model, INT4, dtype, depth + 1)
    for cache in parts.caches:
        cache.copy_(make_cache(parts.heads, depth + 1, dtype))

    def read() -> None:
        parts.read()
        for cache in parts.caches:
            kernels.read(cache)

    pairs = [(seconds(read), seconds(partial(parts.step, depth))) for _ in range(rounds)]
    best = [min(column) / len(parts.layers) for column in zip(*pairs, strict=True)]
    weights = sum(matrix.nbytes for matrix in parts.weights) / len(parts.layers)
    print(
        f"{model.name:32} int4, {str(dtype)[6:]:9} {depth:6}  {best[1] * 1e6:7.0f} µs a layer, reading"
        f" {best[0] * 1e6:7.0f} ({weights / 1e6:.0f} MB and {parts.caches[0].nbytes / 1e6:.0f} MB of cache):"
        f" {best[0] / best[1]:4.0%}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    known = {path.name: path for path in host_paths()}
    parser.add_argument("--depths", default="4096")
    parser.add_argument("--caches", default="f16,bf16,int8")
    parser.add_argument("--shapes", default="")
    parser.add_argument("--path", default=next(iter(known)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--only-layers", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kernels = GeneratedKernels(known[options.path])
    wanted = options.shapes.split(",")
    for model in MODELS if options.only_layers else ():
        for cache in options.caches.split(","):
            for depth in map(int, options.depths.split(",")):
                measure_layers(kernels, model, DTYPES[cache], depth, options.rounds)
    for name in () if options.only_layers else SHAPES:
        if not any(name.startswith(one) for one in wanted):
            continue
        for cache in options.caches.split(","):
            for depth in map(int, options.depths.split(",")):
                measure(kernels, name, DTYPES[cache], depth, options.tokens, options.rounds)


if __name__ == "__main__":
    main()
