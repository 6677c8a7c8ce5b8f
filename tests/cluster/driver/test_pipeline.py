import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from fake_chain import FakeChain
from fake_cluster import run, until
from fake_time import run_at_once

from potluck.cluster.driver.pipeline import PendingStep, Pipeline, token_payload
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
from potluck.ids import SessionId
from potluck.wire.messages import Error, Result, Sampling, StepFailed, TrimSession

CHAT = SessionId("chat")


Scenario = Callable[[Pipeline, FakeChain, FakeChain], Awaitable[None]]


def on_two_links(
    scenario: Scenario, *, run: Callable[[Coroutine[Any, Any, None]], None] = run
) -> None:
    """A pipeline whose first and last stage are two silent links."""

    async def main() -> None:
        first, last = FakeChain(), FakeChain()
        first.is_silent = True
        clock = asyncio.get_running_loop().time
        pipeline = Pipeline(epoch=3, first=first, last=last, stages=2, silence_s=180, clock=clock)
        running = asyncio.create_task(pipeline.run())
        await until(lambda: last.attached)
        await scenario(pipeline, first, last)
        pipeline.shut()
        running.cancel()
        await asyncio.wait([running])
        assert first.is_closed
        assert last.is_closed

    run(main())


def start(pipeline: Pipeline, step: int = 1) -> PendingStep:
    return pipeline.start_step(CHAT, step=step, position=0, tokens=[1, 2], sampling=Sampling())


def failure(kind: str, *, step: int = 1, epoch: int = 3) -> StepFailed:
    return StepFailed(
        epoch=epoch, session=CHAT, step=step, kind=kind, message="A sentence.", position=5
    )


def result(*, step: int = 1, epoch: int = 3, token: int | None = 7) -> Result:
    return Result(epoch=epoch, session=CHAT, step=step, position=2, token_id=token)


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


def follow(pipeline: Pipeline, step: int, *, stops: tuple[int, ...] = ()) -> PendingStep:
    return pipeline.follow(CHAT, step=step, sampling=Sampling(), stops=stops)


def test_a_token_is_sent_back_in_by_who_received_it() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one, two = start(pipeline, 1), follow(pipeline, 2)
        pipeline._receive(result(step=1), memoryview(b""))  # and nobody has awaited anything

        assert [(f.step, f.position) for f in first.forwards] == [(1, 0), (2, 2)]
        assert two.token == 7
        last.say(result(step=2))
        assert (await one.future).result.step == 1
        assert (await two.future).result.step == 2

    on_two_links(scenario)


def test_a_step_that_is_asked_for_late_follows_at_once() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one = start(pipeline, 1)
        last.say(result(step=1))
        await one.future
        assert follow(pipeline, 2).token == 7
        assert len(first.forwards) == 2

    on_two_links(scenario)


def test_a_step_follows_the_one_before_it_and_no_other() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one = start(pipeline, 1)
        last.say(result(step=1))
        await one.future
        two = start(pipeline, 2)  # a prompt of the same session
        three = follow(pipeline, 3)
        last.say(result(step=3))  # that was never sent
        last.say(result(step=2))
        await two.future
        assert [f.step for f in first.forwards] == [1, 2, 3]
        assert not three.future.done()

    on_two_links(scenario)


def test_a_step_that_was_sent_is_not_sent_again_when_the_one_before_it_is_done() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one, two = start(pipeline, 1), start(pipeline, 2)
        last.say(result(step=1))
        await one.future
        assert [f.step for f in first.forwards] == [1, 2]
        assert two.token is None

    on_two_links(scenario)


def test_a_step_whose_number_is_not_the_next_does_not_follow() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one = start(pipeline, 1)
        last.say(result(step=1))
        await one.future
        assert follow(pipeline, 3).token is None
        assert len(first.forwards) == 1

    on_two_links(scenario)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_chunk_that_came_to_no_token_has_nothing_to_send_back_in(is_late: bool) -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one = start(pipeline, 1)
        two = None if is_late else follow(pipeline, 2)
        last.say(result(step=1, token=None))
        await one.future
        assert (two or follow(pipeline, 2)).token is None
        assert len(first.forwards) == 1

    on_two_links(scenario)


def test_a_session_that_was_closed_has_nothing_to_follow() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one = start(pipeline, 1)
        last.say(result(step=1))
        await one.future
        pipeline.close(CHAT)
        assert follow(pipeline, 2).token is None

    on_two_links(scenario)


def test_how_long_a_step_took_is_counted_from_when_it_was_sent() -> None:
    async def main() -> None:
        now = 100.0
        link = FakeChain()
        link.is_silent = True
        pipeline = Pipeline(epoch=3, first=link, last=link, stages=1, clock=lambda: now)
        one, two = start(pipeline, 1), follow(pipeline, 2)
        now = 100.25
        pipeline._receive(result(step=1), memoryview(b""))  # which sends the second
        now = 101.0
        pipeline._receive(result(step=2), memoryview(b""))
        assert (await one.future).seconds == 0.25
        assert (await two.future).seconds == 0.75

    run(main())


def test_a_token_that_ends_the_answer_is_not_sent_back_in() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one, two = start(pipeline, 1), follow(pipeline, 2, stops=(7,))
        last.say(result(step=1))
        await one.future
        assert two.token is None
        assert len(first.forwards) == 1

    on_two_links(scenario)


def test_a_result_that_comes_twice_counts_once() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one, two = start(pipeline, 1), follow(pipeline, 2, stops=(7,))
        for token in (7, 8):
            pipeline._receive(result(step=1, token=token), memoryview(b""))
        assert (await one.future).result.token_id == 7
        assert two.token is None

    on_two_links(scenario)


def test_a_result_of_a_step_that_was_just_given_up_harms_nothing() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        errors = list[dict[str, object]]()
        asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))
        one = start(pipeline)
        pipeline._receive(result(), memoryview(b""))
        pipeline.give_up(one)
        await asyncio.sleep(0)
        assert not errors

    on_two_links(scenario)


def test_a_step_that_was_given_up_is_not_sent() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one, two = start(pipeline, 1), follow(pipeline, 2)
        pipeline.give_up(two)
        last.say(result(step=1))
        await one.future
        assert len(first.forwards) == 1

    on_two_links(scenario)


def test_steps_that_were_to_follow_fail_with_the_pipeline() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        start(pipeline, 1)
        two = follow(pipeline, 2)
        first.break_off()
        with pytest.raises(PeerLostError):
            await two.future
        with pytest.raises(PeerLostError):
            await follow(pipeline, 3).future

    on_two_links(scenario)


def test_a_token_that_came_is_handed_out_though_it_cannot_be_sent_back_in() -> None:
    def refuse(*_: object) -> None:
        raise PeerLostError("gone")

    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one = start(pipeline, 1)
        follow(pipeline, 2)
        first.send_nowait = refuse  # type: ignore[method-assign]
        pipeline._receive(result(step=1), memoryview(b""))
        assert (await one.future).result.token_id == 7

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
        with pytest.raises(PeerLostError, match="held a part of the model"):
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
