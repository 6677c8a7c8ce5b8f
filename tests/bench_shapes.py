"""How near one token is to the floor, by shape and depth: `python tests/bench_shapes.py`. Not a test.

    --shapes llama-1b,…       by the names that `potluck bench` has (default: one of each kind)
    --layers 4                the first so many layers; more are cut off, so that large models fit
    --first 0                 the number of the first layer
    --experts 32              of a mixture, so many; others are cut off, and a token reads as much as ever
    --scheme int4             how weights are held
    --cache full              how keys and values are
    --depths 512,4096,16384   cached tokens
    --threads 1               threads of the kernels
    --rounds 7                rounds; the median counts
    --tokens 128              of the chunk whose prefill is measured there; 0: none

The floor of a token is what its weights and caches take to be read, at the rate at which the weights were read in the same
round. Layers alone are measured, without embedding and head. Where a model has layers of several kinds, the first ones
are those that are measured: choose so many that all kinds are among them.
"""

import argparse
import time
from statistics import median

import torch

from potluck.engine.caches.new_cache import new_cache
from potluck.engine.layers.attention import Step
from potluck.engine.layers.rotary import Rotaries
from potluck.engine.loading.weights import random_weights
from potluck.engine.measuring import StageMeter
from potluck.engine.stage import Stage
from potluck.model.config import ModelConfig
from potluck.model.shapes.table import SHAPES

LAYERS = {
    "llama-1b": 16,
    "qwen-0.5b": 24,
    "gpt-oss-20b": 6,
    "deepseek-v2-lite": 6,
    "glm-4.5-air": 3,
    "qwen3-next-80b-a3b": 4,
    "qwen3-30b-a3b": 8,
    "deepseek-v4-flash": 4,
    "minimax-m3": 5,
    "glm-5.3-flash": 5,
}
CPU = torch.device("cpu")
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")


def make_stage(options: argparse.Namespace, shape: str, depth: int) -> Stage:
    named = {
        name: options.experts for name in _EXPERTS if name in SHAPES[shape] and options.experts
    }
    config = ModelConfig.from_dict({**SHAPES[shape], **named})
    first, count = options.first, options.layers or LAYERS.get(shape, 4)
    layers = range(first, min(first + count, config.num_layers))
    weights = random_weights(
        config, layers, embedding=False, head=False, scheme=options.scheme, device=CPU,
        cache=options.cache,
    )  # fmt: skip
    return Stage(weights, context=depth + 1024, cache_budget=1 << 34)


@torch.inference_mode()
def prefill(stage: Stage, depth: int, tokens: int) -> float:
    """Tokens a second of a chunk after so many cached ones."""
    weights, end = stage.weights, depth + tokens
    caches = [new_cache(spec, weights.cache_dtype, CPU) for spec in stage.caches]
    for spec, cache in zip(stage.caches, caches, strict=True):
        cache.resize(spec.rows(end), 0)
        cache.both.zero_()
        cache.held = spec.advance(cache.held, depth, tokens)
    ropes = Rotaries(weights.config.ropes, stage.context, weights.dtype, CPU).at(end)
    step = Step(depth, tokens, ropes, CPU, torch.zeros(tokens, dtype=torch.int32))
    start = time.perf_counter()
    x = torch.randn(tokens, weights.config.width).to(weights.dtype)
    for block, cache in zip(weights.blocks, caches, strict=True):
        x = block.forward(x, cache, step)
    return tokens / (time.perf_counter() - start)


def measure(options: argparse.Namespace, shape: str) -> None:
    depths = [int(depth) for depth in options.depths.split(",")]
    stage = make_stage(options, shape, max(depths))
    for depth in depths:
        meter = StageMeter(stage, depth, enough=1 << 30)
        rounds = [meter.round() for _ in range(options.rounds)]
        took = median(one.layers_ms for one in rounds)
        rate = median(one.read_bytes_per_s for one in rounds)
        floor = 1000 * (meter.weight_bytes + meter.cache_bytes) / rate
        many = ""
        if options.tokens:
            best = max(prefill(stage, depth, options.tokens) for _ in range(2))
            many = f"   prefill {best:7.0f} tokens/s through these layers"
        print(
            f"{shape:20} {len(stage.weights.blocks):3} layers {depth:6}: {took:7.2f} ms, floor {floor:7.2f}"
            f" ({meter.weight_bytes / 1e6:.0f} MB and {meter.cache_bytes / 1e6:.0f} of cache, {rate / 1e9:.1f} GB/s):"
            f" {floor / took:4.0%}{many}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default=",".join(LAYERS))
    parser.add_argument("--layers", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--experts", type=int)
    parser.add_argument("--scheme", default="int4")
    parser.add_argument("--cache", default="full")
    parser.add_argument("--depths", default="512,4096,16384")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for shape in options.shapes.split(","):
        measure(options, shape)


if __name__ == "__main__":
    main()
