"""What the planner makes of homes of two to eight computers, each of which reads 30 GB/s, on Ethernet of 1 and 2.5 Gbit/s.

A layer takes as long as its weights take to be read.
"""

from itertools import permutations

import pytest

from potluck.ids import NodeId
from potluck.model.config import ModelConfig
from potluck.model.shapes.table import SHAPES
from potluck.plan.cost import DeviceCost, HopCost, LinkCost, ModelShape
from potluck.plan.placement import make_plan
from potluck.plan.shape import read_bytes, shape_of
from potluck.plan.stages import Plan

BYTES_PER_MS = 30e6
CHUNK = 128
CHUNK_READS = 20  # so many times as long as a token takes a chunk: 41 on one core of a Xeon, on which int4 was measured


def planned(
    shape: ModelShape,
    computers: int,
    *,
    gb: float,
    gbit: float = 0.94,
    sum_ms: float = 0.15,
    can_rank: bool = True,
) -> Plan:
    bytes_per_s = gbit * 1e9 / 8
    decode_ms = tuple(nbytes / BYTES_PER_MS for nbytes in read_bytes(shape))
    devices = [
        DeviceCost(
            node=NodeId(f"{number:064x}"),
            name=f"C{number}",
            device="cpu",
            memory=int(gb * 1e9),
            decode_ms=decode_ms,
            prefill_ms=tuple(CHUNK_READS * ms for ms in decode_ms),
            head_ms=shape.head_bytes / BYTES_PER_MS,
            can_rank=can_rank,
        )
        for number in range(computers)
    ]
    pairs = [(a.node, b.node) for a, b in permutations(devices, 2)]
    links = dict.fromkeys(pairs, LinkCost(rtt_ms=0.2, bytes_per_s=bytes_per_s))
    sums = dict.fromkeys(pairs, HopCost(latency_ms=sum_ms, ms_per_byte=1000 / bytes_per_s))
    return make_plan(shape, devices, links, sums=sums, measured_tokens=CHUNK)


def shape_named(name: str) -> ModelShape:
    return shape_of(ModelConfig.from_dict(SHAPES[name]), "int4", context=8192)


def groups(plan: Plan) -> list[int]:
    """How many ranks each stage of the pipeline has."""
    return [len(stage.shares) for stage in plan.pipeline]


@pytest.mark.parametrize(
    ("name", "computers", "gb", "gbit", "alone_ms", "together_ms", "ranks"),
    [
        ("llama-8b", 2, 8, 0.94, 145, 97, [2]),
        ("llama-8b", 4, 8, 0.94, 145, 97, [2]),  # four would read prompts more slowly than one
        ("llama-8b", 4, 8, 2.35, 145, 66, [4]),
        ("llama-70b", 4, 16, 0.94, 1342, 509, [4]),
        ("llama-70b", 4, 16, 2.35, 1342, 432, [4]),
        ("llama-70b", 8, 8, 0.94, 1344, 509, [4, 4]),
        ("llama-70b", 8, 8, 2.35, 1344, 433, [4, 4]),
    ],
)
def test_computers_on_a_cable_compute_layers_of_a_large_model_together(
    name: str,
    computers: int,
    gb: float,
    gbit: float,
    alone_ms: float,
    together_ms: float,
    ranks: list[int],
) -> None:
    shape = shape_named(name)
    one_by_one = planned(shape, computers, gb=gb, gbit=gbit, can_rank=False)
    together = planned(shape, computers, gb=gb, gbit=gbit)

    assert groups(together) == ranks
    assert one_by_one.token_ms == pytest.approx(alone_ms, rel=0.02)
    assert together.token_ms == pytest.approx(together_ms, rel=0.02)
    assert together.optimal


def test_no_computers_do_so_for_a_small_model_or_where_sums_take_long() -> None:
    assert groups(planned(shape_named("qwen-0.5b"), 4, gb=8, sum_ms=0.5)) == [1]
    assert groups(planned(shape_named("llama-8b"), 2, gb=8, sum_ms=1.5)) == [1]
    assert set(groups(planned(shape_named("llama-70b"), 4, gb=16, sum_ms=10.0))) == {1}
