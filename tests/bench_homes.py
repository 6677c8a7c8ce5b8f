"""What the planner makes of homes of several computers that are as fast as this one: `python tests/bench_homes.py`. Not a test.

    --shape llama-8b        of `model/shapes/`
    --scheme int4
    --memory 16             GB that each computer lends
    --computers 2,4,8
    --rtt 0.4               ms of a round trip between two of them
    --rate 940              Mbit/s
    --sums 0.15             ms of a sum of a token, and of what a chunk's sum takes besides its bytes

Layers are measured here with the kernels that a stage has, on one thread for each core; links and sums are as they are given. Printed is the best
plan without rank groups and the best one with them: milliseconds of a token, and seconds to the first one after 2,000 tokens.
"""

import argparse
import os
from dataclasses import replace
from itertools import permutations

import torch

from potluck.engine.device import set_threads
from potluck.engine.profile import profile_layers
from potluck.ids import NodeId
from potluck.model.config import ModelConfig
from potluck.model.shapes.table import SHAPES
from potluck.plan.cost import DeviceCost, HopCost, LinkCost
from potluck.plan.placement import make_plan
from potluck.plan.prefill import best_chunk, time_to_first_token_ms
from potluck.plan.shape import shape_of
from potluck.plan.stages import Plan

CHUNK, CONTEXT, PROMPT = 128, 8192, 2000
MOST_BYTES = 8 << 30  # that the measured layers may take


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--scheme", default="int4")
    parser.add_argument("--memory", type=float, default=16)
    parser.add_argument("--computers", default="2,4,8")
    parser.add_argument("--rtt", type=float, default=0.4)
    parser.add_argument("--rate", type=float, default=940)
    parser.add_argument("--sums", type=float, default=0.15)
    given = parser.parse_args()
    config = ModelConfig.from_dict(SHAPES[given.shape])
    shape = shape_of(config, given.scheme, context=CONTEXT)
    set_threads(len(os.sched_getaffinity(0)))
    profile = profile_layers(
        config, torch.device("cpu"), given.scheme, chunk=CHUNK, memory=MOST_BYTES
    )
    times = list(profile.kinds.values())
    print(
        f"a layer: {times[0].decode_ms:.2f} ms a token, {times[0].prefill_ms:.1f} ms for {CHUNK}; head {profile.head_ms:.1f} ms"
    )
    bytes_per_s = given.rate * 1e6 / 8
    for count in map(int, given.computers.split(",")):
        devices = [
            DeviceCost(
                node=NodeId(f"{number:064x}"),
                name=f"C{number}",
                device="cpu",
                memory=int(given.memory * 1e9),
                decode_ms=tuple(each.decode_ms for each in times),
                prefill_ms=tuple(each.prefill_ms for each in times),
                head_ms=profile.head_ms,
            )
            for number in range(1, count + 1)
        ]
        pairs = [(a.node, b.node) for a, b in permutations(devices, 2)]
        links = dict.fromkeys(pairs, LinkCost(rtt_ms=given.rtt, bytes_per_s=bytes_per_s))
        sums = dict.fromkeys(pairs, HopCost(latency_ms=given.sums, ms_per_byte=1000 / bytes_per_s))
        for with_groups in (False, True):
            own = [replace(device, can_rank=with_groups) for device in devices]
            plan = make_plan(shape, own, links, sums=sums, measured_tokens=CHUNK)
            chunk = best_chunk(shape, plan, prompt_tokens=PROMPT, measured_tokens=CHUNK)
            first = time_to_first_token_ms(
                shape, plan, prompt_tokens=PROMPT, chunk_tokens=chunk, measured_tokens=CHUNK
            )
            print(
                f"{count} computers: {described(plan):40} {plan.token_ms:7.1f} ms a token, first after {first / 1000:6.1f} s"
            )
        print(plan.explanation)


def described(plan: Plan) -> str:
    """Who has which layers: `C1+C2 0 to 31`."""
    words: list[str] = []
    for stage in plan.stages:
        if stage.rank:
            words[-1] = f"{stage.name}+{words[-1]}"
        else:
            words.append(f"{stage.name} {stage.layers.start} to {stage.layers.stop - 1}")
    return ", ".join(words)


if __name__ == "__main__":
    main()
