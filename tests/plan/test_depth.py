"""Times of long prompts and of tokens in long conversations, from what devices measured at two depths."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from potluck.model.caches import CacheSpec, FullCache, KeysAndValues, WindowCache
from potluck.plan.cost import LOCAL_HOP_MS, DeviceCost, Links, ModelShape
from potluck.plan.depth import chunk_read_ms, token_after_ms, token_read_ms
from potluck.plan.groups import group_of
from potluck.plan.placement import make_plan
from potluck.plan.prefill import time_to_first_token_ms

DeviceOf = Callable[..., DeviceCost]
ShapeOf = Callable[..., ModelShape]
LinksOf = Callable[..., Links]
ROW = KeysAndValues(heads=1, size=8, number_bytes=2)  # 32 bytes
FULL = FullCache(row=ROW)
SLIDING = WindowCache(row=ROW, window=1000)
CHUNK, DEEP = 100, 4000


@pytest.fixture
def shape(shape_of: ShapeOf) -> ModelShape:
    """Ten layers that see all tokens, and ten with a window."""
    mixed = shape_of(layers=[0, 1] * 10, layer_bytes=(10, 10))
    return replace(mixed, caches=(FULL, SLIDING), depths=(256,))


def slow(device: DeviceCost, shape: ModelShape, row_ms: float) -> DeviceCost:
    """The device, on which a token takes so much longer in a layer for each row of the cache."""

    def rows(cache: CacheSpec, tokens: float) -> float:
        return cache.read_bytes(int(tokens)) / ROW.nbytes

    after = [
        (
            ms + row_ms * (rows(cache, DEEP + 1) - rows(cache, 257)),
            chunk_ms + CHUNK * row_ms * (rows(cache, DEEP + CHUNK // 2) - rows(cache, CHUNK // 2)),
        )
        for ms, chunk_ms, cache in zip(
            device.decode_ms, device.prefill_ms, shape.caches, strict=True
        )
    ]
    deep, deep_chunk = zip(*after, strict=True)
    return replace(
        device,
        token_read_ms=token_read_ms(shape, device.decode_ms, deep, DEEP),
        chunk_read_ms=chunk_read_ms(shape, device.prefill_ms, deep_chunk, DEEP, CHUNK),
    )


def first_ms(shape: ModelShape, device: DeviceCost, prompt: int, cached: int = 0) -> float:
    plan = make_plan(shape, [device], {}, measured_tokens=CHUNK)
    return time_to_first_token_ms(
        shape, plan, prompt_tokens=prompt, chunk_tokens=CHUNK, measured_tokens=CHUNK, cached=cached
    )


def test_a_token_takes_longer_for_what_each_kind_of_layer_reads(
    shape: ModelShape, device_of: DeviceOf
) -> None:
    device = slow(device_of("Desk", decode_ms=(1.0, 2.0)), shape, 0.001)
    plan = make_plan(shape, [device], {})

    assert token_after_ms(shape, plan, 256) == pytest.approx(plan.token_ms)
    longer = token_after_ms(shape, plan, 8256) - plan.token_ms
    assert longer == pytest.approx(10 * 8.0 + 10 * (1.0 - 0.257))


def test_each_chunk_of_a_prompt_takes_longer_than_the_one_before(
    shape: ModelShape, device_of: DeviceOf
) -> None:
    device = device_of("Desk", decode_ms=(0.0, 0.0), prefill_ms=10.0)
    grows = slow(device, shape, 0.0001)

    assert first_ms(shape, grows, CHUNK) == pytest.approx(first_ms(shape, device, CHUNK))
    longer = first_ms(shape, grows, 8000) - first_ms(shape, device, 8000)
    full = sum(CHUNK * k * CHUNK * 0.0001 for k in range(80))
    sliding = sum(CHUNK * min(k * CHUNK, 950) * 0.0001 for k in range(80))
    assert longer == pytest.approx(10 * (full + sliding))


def test_tokens_that_are_cached_cost_those_that_come_behind_them(
    shape: ModelShape, device_of: DeviceOf
) -> None:
    device = slow(device_of("Desk", decode_ms=(0.0, 0.0)), shape, 0.0001)

    whole, before = first_ms(shape, device, 4000), first_ms(shape, device, 3000)

    behind = first_ms(shape, device, 1000, cached=3000)
    assert behind == pytest.approx(whole - before + 2 * LOCAL_HOP_MS)


def test_what_was_not_measured_does_not_grow(shape: ModelShape, device_of: DeviceOf) -> None:
    device = device_of("Old", decode_ms=(1.0, 1.0))
    plan = make_plan(shape, [device], {})

    assert token_after_ms(shape, plan, 100_000) == plan.token_ms
    once, ten = (first_ms(shape, device, count * CHUNK) for count in (1, 10))
    assert ten - 2 * LOCAL_HOP_MS == pytest.approx(10 * (once - 2 * LOCAL_HOP_MS))


def test_a_time_that_is_less_in_a_long_conversation_is_noise(shape: ModelShape) -> None:
    assert token_read_ms(shape, (2.0, 2.0), (1.9, 1.9), DEEP) == (0.0, 0.0)
    assert chunk_read_ms(shape, (2.0, 2.0), (1.9, 1.9), DEEP, CHUNK) == (0.0, 0.0)


def test_a_layer_that_reads_no_more_never_takes_longer(shape: ModelShape) -> None:
    small = replace(shape, caches=(FULL, replace(SLIDING, window=16)))

    assert token_read_ms(small, (1.0, 1.0), (2.0, 2.0), DEEP)[1] == 0.0
    assert chunk_read_ms(small, (1.0, 1.0), (2.0, 2.0), DEEP, CHUNK)[1] == 0.0


def test_ranks_share_what_grows_if_all_have_measured_it(
    shape: ModelShape, device_of: DeviceOf, links_of: LinksOf
) -> None:
    both = [slow(device_of(name, decode_ms=(1.0, 1.0)), shape, 0.001) for name in ("Desk", "Attic")]
    links = links_of(both)

    def of_group(devices: list[DeviceCost]) -> DeviceCost:
        group = group_of(shape, devices, links, (0, 1), sums={}, prefill_tokens=CHUNK)
        return group.cost

    halves = tuple(ms / 2 for ms in both[0].token_read_ms)
    assert of_group(both).token_read_ms == pytest.approx(halves)
    assert of_group([both[0], replace(both[1], token_read_ms=())]).token_read_ms == ()
