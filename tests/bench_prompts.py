"""How true the planner's times of long prompts and deep tokens are: `python tests/bench_prompts.py`. Not a test.

    --shapes qwen-0.5b=24,…   of `model/shapes`, each with its first so many layers, so that large models fit
    --scheme int4             how weights are held
    --cache full              how keys and values are
    --prompts 500,2000,8000   tokens
    --depths 4096,16384       cached tokens, of which a token is measured
    --threads 1               of the kernels

    --busy                    count this thread's time on a processor alone, on a computer that has other things to do

What a plan says with the measurements that a node makes, and beside it what a stage takes in this process: no network is in it.
"""

import argparse
import time
from dataclasses import replace
from statistics import median

import torch

from potluck.engine.device import set_threads
from potluck.engine.loading.weights import random_weights
from potluck.engine.profile import profile_layers
from potluck.engine.stage import Stage
from potluck.ids import NodeId, SessionId
from potluck.model.config import ModelConfig
from potluck.model.shapes.table import SHAPES
from potluck.plan.cost import LOCAL_HOP_MS, DeviceCost
from potluck.plan.depth import chunk_read_ms, token_after_ms, token_read_ms
from potluck.plan.placement import make_plan
from potluck.plan.prefill import best_chunk, time_to_first_token_ms
from potluck.plan.shape import kinds_of, shape_of
from potluck.wire.activation_messages import Sampling

CHUNK, MEMORY = 128, 1 << 34
SESSION = SessionId("prompt")
CPU = torch.device("cpu")
TOKENS = 24  # of which one at a depth is the median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default="qwen-0.5b=24,llama-1b=8,llama-8b=2")
    parser.add_argument("--scheme", default="int4")
    parser.add_argument("--cache", default="full")
    parser.add_argument("--prompts", default="500,2000,8000")
    parser.add_argument("--depths", default="4096,16384")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--busy", action="store_true")
    given = parser.parse_args()
    if given.busy:
        time.perf_counter = time.thread_time
    set_threads(given.threads)
    for word in given.shapes.split(","):
        name, _, layers = word.partition("=")
        measure(name, int(layers or 4), given)


def measure(name: str, layers: int, given: argparse.Namespace) -> None:
    whole = ModelConfig.from_dict(dict(SHAPES[name]))
    config = replace(whole, layers=whole.layers[:layers])
    prompts = [int(word) for word in given.prompts.split(",")]
    depths = [int(word) for word in given.depths.split(",")]
    context = max(*prompts, *depths) + TOKENS + 1
    began = time.perf_counter()
    profile = profile_layers(
        config, CPU, given.scheme, chunk=CHUNK, memory=MEMORY, cache=given.cache
    )
    took = time.perf_counter() - began
    shape = shape_of(config, given.scheme, context=context, cache=given.cache)
    times = [profile.kinds[kind] for kind in kinds_of(config)]
    device = DeviceCost(
        node=NodeId("0" * 64),
        name="Here",
        device="cpu",
        memory=MEMORY,
        decode_ms=tuple(each.decode_ms for each in times),
        prefill_ms=tuple(each.prefill_ms for each in times),
        head_ms=profile.head_ms,
        token_read_ms=token_read_ms(
            shape,
            [each.decode_ms for each in times],
            [each.deep_decode_ms for each in times],
            profile.deep,
        ),
        chunk_read_ms=chunk_read_ms(
            shape,
            [each.prefill_ms for each in times],
            [each.deep_prefill_ms for each in times],
            profile.deep,
            CHUNK,
        ),
    )
    plan = make_plan(shape, [device], {}, measured_tokens=CHUNK)
    print(f"{name}, {layers} layers: measured by a node in {took:.1f} s", flush=True)
    weights = random_weights(
        config, range(layers), embedding=True, head=True, scheme=given.scheme, device=CPU, cache=given.cache
    )  # fmt: skip
    stage = Stage(weights, context=context, cache_budget=MEMORY)
    for tokens in prompts:
        chunk = best_chunk(shape, plan, prompt_tokens=tokens, measured_tokens=CHUNK)
        planned = time_to_first_token_ms(
            shape, plan, prompt_tokens=tokens, chunk_tokens=chunk, measured_tokens=CHUNK
        )
        say(f"prompt of {tokens}", planned - 2 * LOCAL_HOP_MS, read(stage, tokens, chunk))
    for depth in depths:
        planned = token_after_ms(shape, plan, depth)
        say(f"token after {depth}", planned - 2 * LOCAL_HOP_MS, token(stage, depth))


def say(what: str, planned: float, measured: float) -> None:
    print(
        f"{what:20} {planned:9.1f} ms planned, {measured:9.1f} ms measured: {planned / measured:.2f}",
        flush=True,
    )


def read(stage: Stage, tokens: int, chunk: int) -> float:
    """Milliseconds of a prompt."""
    ids = torch.randint(0, stage.weights.config.vocab_size, (tokens,))
    stage.open(SESSION, epoch=0)
    began = time.perf_counter()
    for start in range(0, tokens, chunk):
        step(stage, ids[start : start + chunk], start, end=tokens)
    took = time.perf_counter() - began
    stage.close(SESSION, epoch=0)
    return 1000 * took


def token(stage: Stage, depth: int) -> float:
    """Milliseconds of a token after so many others."""
    stage.open(SESSION, epoch=0)
    for start in range(0, depth, 512):
        step(stage, torch.zeros(min(512, depth - start), dtype=torch.long), start, end=depth)
    times: list[float] = []
    for position in range(depth, depth + TOKENS):
        began = time.perf_counter()
        step(stage, torch.zeros(1, dtype=torch.long), position, end=position + 1)
        times.append(1000 * (time.perf_counter() - began))
    stage.close(SESSION, epoch=0)
    return median(times)


def step(stage: Stage, ids: torch.Tensor, position: int, *, end: int) -> None:
    is_last = position + len(ids) == end
    stage.forward(
        SESSION, ids, epoch=0, step=position, position=position, prompt_end=end,
        sampling=Sampling() if is_last else None,
    )  # fmt: skip


if __name__ == "__main__":
    main()
