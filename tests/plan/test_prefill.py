from collections.abc import Callable
from dataclasses import replace

import pytest

from potluck.plan.cost import HOP_SOFTWARE_MS, LOCAL_HOP_MS, DeviceCost, LinkCost, Links, ModelShape
from potluck.plan.placement import make_plan
from potluck.plan.prefill import best_chunk, time_to_first_token_ms

DeviceOf = Callable[..., DeviceCost]
ShapeOf = Callable[..., ModelShape]
LinksOf = Callable[..., Links]


def forecast(
    shape: ModelShape,
    devices: list[DeviceCost],
    links: Links,
    prompt_tokens: int,
    **options: object,
) -> float:
    plan = make_plan(shape, devices, links, **options)  # pyright: ignore[reportArgumentType]
    return time_to_first_token_ms(
        shape, plan, prompt_tokens=prompt_tokens, chunk_tokens=100, measured_tokens=100
    )


def test_one_stage_takes_chunk_after_chunk(device_of: DeviceOf, shape_of: ShapeOf) -> None:
    ms = forecast(shape_of(10), [device_of("Laptop", head_ms=2.0)], {}, 400)

    assert ms == pytest.approx(4 * 10 * 10 + 2 + 2 * LOCAL_HOP_MS)


@pytest.mark.parametrize("chunks", [1, 2, 8, 40])
def test_equal_stages_follow_the_formula_of_a_pipeline(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf, chunks: int
) -> None:
    devices = [device_of(name) for name in ("Laptop", "Desktop", "Mac", "NAS")]
    links = links_of(devices, rtt_ms=0.0, bytes_per_s=1e15)

    ms = forecast(
        shape_of(20), devices, links, 100 * chunks, layers=[(device.name, 5) for device in devices]
    )

    alone = 20 * 10 * chunks  # one computer, chunk after chunk
    speedup = 4 * chunks / (chunks + 4 - 1)
    hops = LOCAL_HOP_MS + 4 * HOP_SOFTWARE_MS
    assert ms == pytest.approx(alone / speedup + hops, rel=1e-6)


def test_a_link_slower_than_the_stages_sets_the_pace(
    device_of: DeviceOf, shape_of: ShapeOf
) -> None:
    shape = shape_of(2, hidden_bytes=10_000)
    devices = [device_of("Laptop"), device_of("Desktop")]
    slow = LinkCost(rtt_ms=0.0, bytes_per_s=1e7)  # 100 ms for a chunk's hidden states
    links = {(a.node, b.node): slow for a in devices for b in devices if a is not b}

    layers = [("Laptop", 1), ("Desktop", 1)]
    ms = {n: forecast(shape, devices, links, 100 * n, layers=layers) for n in (10, 11)}

    assert ms[11] - ms[10] == pytest.approx(100)


def test_a_short_prompt_costs_a_token_and_its_share_of_a_chunk(
    device_of: DeviceOf, shape_of: ShapeOf
) -> None:
    shape, devices = shape_of(10), [device_of("Laptop", decode_ms=1.0, prefill_ms=10.0)]

    assert forecast(shape, devices, {}, 50) == pytest.approx(10 + 49 * 90 / 99 + 2 * LOCAL_HOP_MS)
    assert forecast(shape, devices, {}, 1) == pytest.approx(10 + 2 * LOCAL_HOP_MS)


def test_many_tokens_read_more_experts_than_one(device_of: DeviceOf, shape_of: ShapeOf) -> None:
    # Of ten experts one token reads one, with as many other bytes; 100 tokens read all of them.
    shape = shape_of(10, layer_bytes=(11,), expert_bytes=(10,), expert_part=0.1)
    devices = [device_of("Laptop", decode_ms=1.0, prefill_ms=10.0)]
    ten = 0.5 + 0.5 * 10 * (1 - 0.9**10)
    whole = 0.5 + 0.5 * 10 * (1 - 0.9**100)

    ms = {n: forecast(shape, devices, {}, n) - 2 * LOCAL_HOP_MS for n in (1, 10, 100)}

    assert ms[1] == pytest.approx(10)
    assert ms[10] == pytest.approx(10 * ten + 9 * (100 - 10 * whole) / 99)
    assert ms[100] == pytest.approx(100)


def test_experts_are_read_less_often_in_larger_chunks(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [device_of(name, decode_ms=1.0, prefill_ms=38.0) for name in ("Laptop", "Desktop")]
    links = links_of(devices, rtt_ms=0.0, bytes_per_s=1e12)
    chunks: list[int] = []
    sparse = shape_of(48, layer_bytes=(33,), expert_bytes=(32,), expert_part=1 / 16)
    for shape in (shape_of(48), sparse):
        plan = make_plan(shape, devices, links, layers=[("Laptop", 24), ("Desktop", 24)])
        chunks.append(best_chunk(shape, plan, prompt_tokens=512, measured_tokens=128))

    assert chunks == [64, 128]


def test_nothing_to_prefill_takes_no_computing(device_of: DeviceOf, shape_of: ShapeOf) -> None:
    assert forecast(shape_of(), [device_of("Laptop")], {}, 0) == pytest.approx(LOCAL_HOP_MS)


def test_layers_of_every_kind_cost_their_own_time(device_of: DeviceOf, shape_of: ShapeOf) -> None:
    shape = shape_of(layers=[0, 1, 1], layer_bytes=[10, 10])
    device = replace(device_of("Laptop", decode_ms=(1.0, 1.0)), prefill_ms=(10.0, 30.0))

    assert forecast(shape, [device], {}, 100) == pytest.approx(70 + 2 * LOCAL_HOP_MS)


def test_only_the_layers_with_experts_read_more_for_many_tokens(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    shape = shape_of(
        layers=[0, 0, 1, 1], layer_bytes=(11, 11), expert_bytes=(0, 10), expert_part=0.1
    )
    devices = [device_of(name, decode_ms=(1.0, 1.0)) for name in ("Laptop", "Desktop")]
    links = links_of(devices, rtt_ms=0.0, bytes_per_s=1e15)
    plan = make_plan(shape, devices, links, layers=[("Laptop", 2), ("Desktop", 2)])
    ten, whole = (0.5 + 0.5 * 10 * (1 - 0.9**tokens) for tokens in (10, 100))

    ms = time_to_first_token_ms(
        shape, plan, prompt_tokens=10, chunk_tokens=100, measured_tokens=100
    )

    dense = 2 * (1 + 9 * (10 - 1) / 99)
    sparse = 2 * (ten + 9 * (10 - whole) / 99)
    assert ms == pytest.approx(dense + sparse + sum(hop.ms(0) for hop in plan.hops))


def test_one_stage_takes_the_largest_chunk(device_of: DeviceOf, shape_of: ShapeOf) -> None:
    shape, devices = shape_of(10), [device_of("Laptop", decode_ms=1.0, prefill_ms=10.0)]
    plan = make_plan(shape, devices, {})

    assert best_chunk(shape, plan, prompt_tokens=2000, measured_tokens=128) == 256
    one_of_several = replace(plan.stages[0], device="cpu:0")
    on_several = replace(plan, stages=(one_of_several,))
    assert best_chunk(shape, on_several, prompt_tokens=2000, measured_tokens=128) == 256
    on_gpu = replace(plan, stages=tuple(replace(s, device="cuda:0") for s in plan.stages))
    assert best_chunk(shape, on_gpu, prompt_tokens=2000, measured_tokens=128) == 512


def test_several_stages_take_smaller_chunks_of_a_short_prompt(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [device_of(name, decode_ms=0.1, prefill_ms=10.0) for name in ("Laptop", "Desktop")]
    layers = [(device.name, 5) for device in devices]
    shape = shape_of(10)
    plan = make_plan(shape, devices, links_of(devices, rtt_ms=0.1, bytes_per_s=1e9), layers=layers)

    chunk = best_chunk(shape, plan, prompt_tokens=512, measured_tokens=128)

    assert chunk < 256
