from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from potluck.errors import InvalidLayersError, NotEnoughMemoryError
from potluck.plan.apart import Reading, Sizes, first_token_ms, plan_apart, reading_beside, told_ms
from potluck.plan.cost import DeviceCost, LinkCost, Links, ModelShape
from potluck.plan.placement import make_plan
from potluck.plan.stages import Plan

DeviceOf = Callable[..., DeviceCost]
ShapeOf = Callable[..., ModelShape]
LinksOf = Callable[..., Links]


@pytest.fixture
def home(device_of: DeviceOf) -> list[DeviceCost]:
    """A Mac that reads memory fast, and a PC that computes fast; each holds the model."""
    return [
        device_of("Mac", decode_ms=1.0, prefill_ms=80.0, head_ms=0.0),
        device_of("PC", decode_ms=3.0, prefill_ms=8.0, head_ms=0.0, device="cuda:0"),
    ]


@pytest.fixture
def sizes(shape_of: ShapeOf, links_of: LinksOf, home: list[DeviceCost]) -> Sizes:
    return Sizes(
        shape=shape_of(10),
        links=links_of(home, rtt_ms=0.2, bytes_per_s=1e8),
        cache_bytes=lambda tokens: 50_000 * tokens,  # half a millisecond a token
        measured_tokens=100,
        context=8192,
        most_bytes=1 << 30,
    )


def planned(
    sizes: Sizes, devices: Sequence[DeviceCost], *wanted: str, **options: Any
) -> tuple[Plan, Reading | None]:
    answering = partial(make_plan, sizes.shape, links=sizes.links, measured_tokens=100, **options)
    return plan_apart(sizes, devices, wanted=wanted, may_choose=not wanted, answering=answering)


def names(plan: Plan | None) -> list[str]:
    return [] if plan is None else [stage.name for stage in plan.stages]


def test_who_computes_faster_reads_for_who_answers_faster(
    sizes: Sizes, home: list[DeviceCost]
) -> None:
    plan, reading = planned(sizes, home)

    assert reading is not None
    assert (names(plan), names(reading.plan)) == (["Mac"], ["PC"])
    alone, apart = (first_token_ms(sizes, plan, one, 2000) for one in (None, reading.plan))
    assert 15_000 < alone < 17_000  # 20 chunks of 800 ms
    assert 1300 < apart < 1500  # as many tokens, ten times as fast, then the last rows
    assert reading.explanation.startswith(
        "PC reads your prompt, Mac writes the answer: first token of a prompt of 2,000 tokens after"
        f" {apart / 1000:.1f} s instead of {alone / 1000:.0f} s."
    )
    assert reading.least_tokens == 256


@pytest.mark.parametrize(
    ("cost", "why"),
    [
        ({"bytes_per_s": 5e6}, "a token's cache takes longer than the token"),
        ({"prefill_ms": 70.0}, "it computes hardly faster"),
        ({"memory": 5}, "it cannot hold the model"),
        ({"tokens": 1000}, "nobody would notice"),
    ],
)
def test_a_copy_that_does_not_pay_is_not_made(
    sizes: Sizes, home: list[DeviceCost], cost: dict[str, Any], why: str
) -> None:
    mac, pc = home
    if (rate := cost.get("bytes_per_s")) is not None:
        link = LinkCost(rtt_ms=0.2, bytes_per_s=rate)
        sizes = replace(sizes, links=dict.fromkeys(sizes.links, link))
    if (ms := cost.get("prefill_ms")) is not None:
        pc = replace(pc, prefill_ms=(ms,))
    if (memory := cost.get("memory")) is not None:
        pc = replace(pc, memory=memory)
    if (most := cost.get("tokens")) is not None:
        mac = replace(mac, prefill_ms=(1.05,))
        sizes = replace(sizes, context=most)

    plan, reading = planned(sizes, [mac, pc])

    assert names(plan)[0] == "Mac", why
    assert reading is None, why


def test_a_computer_without_which_a_token_takes_longer_goes_on_answering(
    sizes: Sizes, home: list[DeviceCost]
) -> None:
    mac, pc = home
    pc = replace(pc, decode_ms=(0.8,))  # the fastest at both
    plan, reading = planned(sizes, [mac, pc])
    assert names(plan) == ["PC"]
    assert reading is None


def test_whoever_is_named_reads_and_the_others_answer(
    sizes: Sizes, home: list[DeviceCost], device_of: DeviceOf, links_of: LinksOf
) -> None:
    attic = device_of("Attic", decode_ms=9.0, prefill_ms=99.0)
    devices = [*home, attic]
    sizes = replace(sizes, links=links_of(devices, rtt_ms=0.2, bytes_per_s=1e8))

    plan, reading = planned(sizes, devices, "mac")
    assert reading is not None
    assert (names(plan), names(reading.plan)) == (["PC"], ["Mac"])
    assert "That is slower than without, but you asked for it." in reading.explanation
    assert (reading.least_tokens, reading.most_tokens) == (512, 8192)

    layers = [("Attic", 4), ("Mac", 6)]
    plan, reading = planned(sizes, devices, "PC", layers=layers)
    assert reading is not None
    assert (names(plan), names(reading.plan)) == (["Attic", "Mac"], ["PC"])

    halves = [replace(device, memory=140) for device in home]
    with pytest.raises(NotEnoughMemoryError):
        planned(sizes, [*halves, attic], "PC")
    plan, reading = planned(sizes, [*halves, attic], "PC", "Mac")
    assert reading is not None
    assert names(plan) == ["Attic"]
    assert sorted(names(reading.plan)) == ["Mac", "PC"]


def test_who_reads_is_not_said_to_lend_nothing(sizes: Sizes, home: list[DeviceCost]) -> None:
    plan, reading = planned(sizes, home, "PC")
    assert reading is not None
    assert "0 B" not in plan.explanation
    assert "PC gets nothing" not in plan.explanation
    assert plan.alone[home[1].node] == pytest.approx(1000 / 32, rel=0.2)  # it holds the model
    with pytest.raises(InvalidLayersError, match="PC reads prompts for the others"):
        planned(sizes, home, "PC", layers=[("PC", 4), ("Mac", 6)])


def test_one_that_has_no_part_of_a_plan_in_force_may_read_for_it(
    sizes: Sizes, home: list[DeviceCost]
) -> None:
    mac, pc = home
    plan, _ = planned(sizes, [mac, replace(pc, memory=0)])
    reading = reading_beside(sizes, home, plan)
    assert reading is not None
    assert names(reading.plan) == ["PC"]
    assert reading_beside(sizes, [mac, replace(pc, prefill_ms=(70.0,))], plan) is None
    halves = [replace(mac, memory=140), replace(pc, memory=140)]
    both, _ = planned(sizes, halves)
    assert reading_beside(sizes, home, both) is None  # each has a part


def test_those_who_answer_and_those_who_read_may_compute_layers_together(
    sizes: Sizes, device_of: DeviceOf, links_of: LinksOf
) -> None:
    # Together, A and B take half as long as one of them; P computes prompts fast.
    devices = [device_of(name, decode_ms=12.0, prefill_ms=80.0, head_ms=0.0) for name in "AB"]
    reader = device_of("P", decode_ms=20.0, prefill_ms=2.0, head_ms=0.0, device="cuda:0")
    devices.append(reader)
    links = links_of(devices, rtt_ms=0.2, bytes_per_s=1e9)
    sizes = replace(sizes, links=links, shape=replace(sizes.shape, divided=(1.0,)))
    alone = make_plan(sizes.shape, devices, sizes.links, measured_tokens=100)
    assert any(stage.is_ranked for stage in alone.stages)

    plan, reading = planned(sizes, devices, "P")
    assert reading is not None
    assert [stage.is_ranked for stage in (*plan.stages, *reading.plan.stages)] == [
        True,
        True,
        False,
    ]
    plan, reading = planned(sizes, devices, "A", "B")
    assert reading is not None
    assert [stage.is_ranked for stage in reading.plan.stages] == [True, True]


def test_ranks_send_a_cache_once_between_them(
    sizes: Sizes, device_of: DeviceOf, links_of: LinksOf
) -> None:
    """Moving takes nearly all of the time here, and who answers receives all of it."""
    devices = [device_of(name, decode_ms=1.0, prefill_ms=0.1, head_ms=0.0) for name in "ABP"]
    slow = replace(sizes, links=links_of(devices, rtt_ms=0.2, bytes_per_s=1e6))

    def moved_ms(reading: tuple[str, int]) -> float:
        answers = make_plan(
            slow.shape, devices, slow.links, layers=[("P", 10)], measured_tokens=100
        )
        reads = make_plan(slow.shape, devices, slow.links, layers=[reading], measured_tokens=100)
        return first_token_ms(slow, answers, reads, 2000)

    assert moved_ms(("A+B", 10)) == pytest.approx(moved_ms(("A", 10)), rel=0.02)


def test_what_cannot_be_is_refused_in_a_sentence(sizes: Sizes, home: list[DeviceCost]) -> None:
    with pytest.raises(InvalidLayersError, match="no computer called Laptop"):
        planned(sizes, home, "Laptop")
    with pytest.raises(InvalidLayersError, match="none is left to answer"):
        planned(sizes, home, "Mac", "PC")
    with pytest.raises(InvalidLayersError, match="--cache int8"):
        planned(replace(sizes, is_int8=True), home, "PC")
    assert planned(replace(sizes, is_int8=True), home)[1] is None


def test_a_prompt_whose_cache_is_too_large_is_read_where_it_is_answered(
    sizes: Sizes, home: list[DeviceCost]
) -> None:
    _, reading = planned(replace(sizes, most_bytes=200_000_000), home)
    assert reading is not None
    assert reading.most_tokens == 4000
    assert "more than 4,000 tokens" in reading.explanation


def test_a_model_whose_usual_prompt_is_too_large_to_be_moved_gets_no_reader(
    sizes: Sizes, home: list[DeviceCost]
) -> None:
    _, reading = planned(replace(sizes, most_bytes=75_000_000), home)  # 1,500 tokens
    assert reading is None


@pytest.mark.parametrize(
    "cost", [{"context": 512}, {"most_bytes": 500 * 50_000}], ids=["context", "bytes"]
)
def test_a_copy_of_the_model_that_could_never_read_a_prompt_is_refused(
    sizes: Sizes, home: list[DeviceCost], cost: dict[str, Any]
) -> None:
    with pytest.raises(InvalidLayersError, match="PC would have nothing to read"):
        planned(replace(sizes, **cost), home, "PC")


def test_people_are_told_of_the_prompt_that_they_ask_about(
    sizes: Sizes, home: list[DeviceCost]
) -> None:
    for prompt, told in ((7000, 7000), (100, 2000)):
        asked = replace(sizes, prompt=prompt)
        plan, reading = planned(asked, home)
        assert reading is not None
        assert f"first token of a prompt of {told:,} tokens" in reading.explanation
        reader = reading.plan if prompt == told else None
        assert told_ms(asked, plan, reading) == first_token_ms(sizes, plan, reader, prompt)


def test_prompts_with_pictures_are_said_to_be_read_where_they_are_answered(
    sizes: Sizes, home: list[DeviceCost]
) -> None:
    for tokens in (0, 256):
        shape = replace(sizes.shape, picture_tokens=tokens)
        _, reading = planned(replace(sizes, shape=shape), home, "PC")
        assert reading is not None
        assert ("So are those with pictures." in reading.explanation) == bool(tokens)


def test_the_link_sets_the_pace_of_a_long_prompt(sizes: Sizes, home: list[DeviceCost]) -> None:
    plan, reading = planned(sizes, home, "PC")
    assert reading is not None
    slow = replace(sizes, links=dict.fromkeys(sizes.links, LinkCost(rtt_ms=0.2, bytes_per_s=2e7)))

    first = [first_token_ms(slow, plan, reading.plan, tokens) for tokens in (3000, 4000)]

    assert first[1] - first[0] == pytest.approx(1000 * 2.5, rel=0.05)


def test_a_computer_with_an_older_program_neither_reads_for_others_nor_is_read_for(
    sizes: Sizes, home: list[DeviceCost]
) -> None:
    mac, pc = home
    old = [mac, replace(pc, moves_caches=False)]
    assert planned(sizes, old)[1] is None
    with pytest.raises(InvalidLayersError, match="PC cannot take part where some computers read"):
        planned(sizes, old, "PC")

    attic = replace(
        mac, node=pc.node[:-1] + "9", name="Attic", decode_ms=(0.1,), moves_caches=False
    )
    everyone = [mac, pc, attic]
    three = replace(
        sizes,
        links={
            (a.node, b.node): LinkCost(rtt_ms=0.2, bytes_per_s=1e8)
            for a in everyone
            for b in everyone
            if a is not b
        },
    )
    plan, reading = planned(three, everyone, "PC")
    assert reading is not None
    assert (names(plan), names(reading.plan)) == (["Mac"], ["PC"])
