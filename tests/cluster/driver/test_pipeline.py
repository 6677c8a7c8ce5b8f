import asyncio

import pytest
from fake_chain import FakeChain
from fake_time import run_at_once
from two_links import CHAT, failure, follow, on_two_links, result, start

from potluck.cluster.driver.payload import token_payload
from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.loss import computer_lost
from potluck.errors import (
    EngineError,
    InvalidStepError,
    NeedReplayError,
    OutOfMemoryError,
    PeerLostError,
    PeerTimeoutError,
    PromptError,
    StaleEpochError,
    UnknownSessionError,
)
from potluck.wire.activation_messages import TrimSession
from potluck.wire.messages import Error


def test_tokens_are_little_endian_and_of_four_bytes() -> None:
    assert token_payload([1, 256]) == b"\x01\0\0\0\0\x01\0\0"


def test_steps_enter_at_the_first_stage_and_come_out_at_the_last() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        assert last.attached == 3
        future = start(pipeline)
        assert len(first.forwards) == 1
        assert not last.forwards
        last.say(result())
        assert (await future.future).result.token_id == 7

    on_two_links(scenario)


def test_results_of_other_plans_and_steps_are_passed_over() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        future = start(pipeline, step=2)
        last.say(result(step=1))
        last.say(result(step=2, epoch=2))
        last.say(TrimSession(epoch=3, session=CHAT, position=0))
        last.say(result(step=2))
        last.say(result(step=2))
        assert (await future.future).result.epoch == 3

    on_two_links(scenario)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("need_replay", NeedReplayError),
        ("unknown_session", UnknownSessionError),
        ("out_of_memory", OutOfMemoryError),
        (PromptError.code, PromptError),
        (InvalidStepError.code, InvalidStepError),
    ],
)
def test_what_ends_one_step_leaves_the_pipeline(kind: str, error: type[Exception]) -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one, two = start(pipeline, 1), start(pipeline, 2)
        pipeline.step_failed(failure(kind, step=1))
        with pytest.raises(error) as caught:
            await one.future
        assert getattr(caught.value, "data")["position"] == 5  # noqa: B009
        assert pipeline.broken is None
        last.say(result(step=2))
        await two.future

    on_two_links(scenario)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("peer_lost", PeerLostError),
        (StaleEpochError.code, StaleEpochError),
        ("engine", EngineError),
        ("toaster", EngineError),
    ],
)
def test_what_does_not_pass_by_itself_breaks_the_pipeline(
    kind: str, error: type[Exception]
) -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one, two = start(pipeline, 1), start(pipeline, 2)
        pipeline.step_failed(failure(kind, step=1))
        for future in (one, two):
            with pytest.raises(error):
                await future.future
        with pytest.raises(error):
            await start(pipeline, 3).future
        pipeline.open(CHAT)  # says nothing, and harms nothing

    on_two_links(scenario)


def test_a_failure_that_nobody_waits_for_any_more_harms_nothing() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one, two = start(pipeline, 1), start(pipeline, 2)
        one.future.cancel()
        pipeline.step_failed(failure("need_replay", step=1))
        last.say(result(step=2))
        await two.future

    on_two_links(scenario)


def test_a_failure_of_another_plan_is_not_ours() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        future = start(pipeline)
        pipeline.step_failed(failure("engine", epoch=2))
        pipeline.step_failed(failure("need_replay", step=9))
        last.say(result())
        await future.future

    on_two_links(scenario)


def test_who_waits_no_more_keeps_nobody_from_hearing_of_the_end() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one, two = start(pipeline, 1), start(pipeline, 2)
        one.future.cancel()
        first.break_off()
        with pytest.raises(PeerLostError):
            await two.future

    on_two_links(scenario)


def test_the_first_reason_for_the_end_is_the_one_that_is_told() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        pipeline.step_failed(failure("engine"))
        pipeline.shut()
        with pytest.raises(EngineError, match="A sentence"):
            await start(pipeline).future

    on_two_links(scenario)


@pytest.mark.parametrize("which", ["first", "last"])
def test_the_end_of_either_connection_names_the_computer(which: str) -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        future = start(pipeline)
        (first if which == "first" else last).break_off()
        with pytest.raises(PeerLostError, match="Laptop stopped answering"):
            await future.future

    on_two_links(scenario)


def test_an_error_on_the_way_is_the_pipelines() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        future = start(pipeline)
        last.say(Error(kind="engine", message="It burns."))
        with pytest.raises(EngineError, match="burns"):
            await future.future

    on_two_links(scenario)


def test_a_step_that_cannot_be_sent_fails_with_the_connection_and_names_the_computer() -> None:
    def refuse(*_: object) -> None:
        raise PeerLostError("gone")

    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        first.send_nowait = refuse  # type: ignore[method-assign]
        pipeline.open(CHAT)
        one = start(pipeline)
        first.break_off()
        with pytest.raises(PeerLostError, match="Laptop"):
            await one.future

    on_two_links(scenario)


def test_silence_ends_every_step_that_is_under_way() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        steps = [start(pipeline, 1), start(pipeline, 2), follow(pipeline, 3)]
        await asyncio.sleep(179)
        assert pipeline.broken is None
        await asyncio.sleep(1.1)
        for step in steps:
            with pytest.raises(PeerTimeoutError, match=r"Nothing came .* for 180 seconds"):
                await step.future

    on_two_links(scenario, run=run_at_once)


def test_a_step_may_wait_behind_others_for_as_long_as_their_results_come() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        behind = start(pipeline, 9)
        for step in range(1, 6):
            before = start(pipeline, step)
            await asyncio.sleep(100)
            last.say(result(step=step))
            await before.future
        last.say(result(step=9))
        assert (await behind.future).seconds == pytest.approx(500)

    on_two_links(scenario, run=run_at_once)


def test_a_step_that_failed_is_a_sign_of_life_too() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        start(pipeline, 1)
        for step in (2, 3):
            failing = start(pipeline, step)
            await asyncio.sleep(100)
            pipeline.step_failed(failure("need_replay", step=step))
            with pytest.raises(NeedReplayError):
                await failing.future
        assert pipeline.broken is None

    on_two_links(scenario, run=run_at_once)


def test_time_without_work_is_no_silence() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        await asyncio.sleep(1000)
        for step in (1, 3):
            one, unsent = start(pipeline, step), follow(pipeline, step + 1, stops=(7,))
            await asyncio.sleep(170)
            last.say(result(step=step))
            await one.future
            await asyncio.sleep(1000)  # while a step waits for a token that ends the answer
            assert pipeline.broken is None
            pipeline.give_up(unsent)
        pipeline.give_up(start(pipeline, 5))
        await asyncio.sleep(1000)
        assert pipeline.broken is None

    on_two_links(scenario, run=run_at_once)


def test_a_lost_computer_is_said_by_name_and_with_what_happens_now() -> None:
    assert str(computer_lost("Laptop", "was unplugged")).startswith("Laptop was unplugged")
