"""A stage process from its node's side. Those here are small programs that misbehave in one way each."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fake_cluster import run, until
from stage_programs import DEAF, READY, Process

from potluck.cluster.processes.handle import StageHandle
from potluck.cluster.processes.messages import LoadStage, StageSettings
from potluck.cluster.processes.stage_process import HandleTimes
from potluck.cluster.processes.watchdog import WatchTimes
from potluck.errors import EngineError, IntegrityError
from potluck.wire.measuring_messages import Profile

pytestmark = pytest.mark.slow

LOAD = LoadStage(
    home="", epoch=1, model_id="ab" * 32, config={}, scheme="f32", layers=(0, 1), embedding=True,
    head=True, context=8, tensors=(), next_hop=None,
)  # fmt: skip


MakeProcess = Callable[..., Process]


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeProcess:
    return lambda program, times=None: Process(tmp_path, program, monkeypatch, times)


def test_it_is_ready_when_it_has_said_so(process: MakeProcess) -> None:
    async def main() -> None:
        async with process(READY + DEAF) as running:
            assert running.handle.activation_port == 4711
            assert running.handle.devices[0].name == "fake"
        assert running.exits == []  # it was asked to end

    run(main())


def test_one_that_dies_while_it_starts_is_an_error_that_names_the_log(
    process: MakeProcess,
) -> None:
    async def main() -> None:
        broken = process("sys.exit('no torch')")
        with pytest.raises(EngineError, match=r"engine\.previous\.log"):
            await broken.handle.start()
        await broken.handle.stop()

        assert broken.exits == []  # it was never up
        assert "no torch" in broken.previous_log.read_text()

    run(main())


def test_the_log_of_one_that_died_outlives_the_start_of_the_next(process: MakeProcess) -> None:
    async def main() -> None:
        async with process(READY + "hear(); sys.exit('a bug')") as dying:
            with pytest.raises(EngineError) as caught:
                await dying.handle.profile(Profile(config={}, scheme="f32", tokens=8))
        async with process("print('up', file=sys.stderr)\n" + READY + DEAF) as next_one:
            assert str(next_one.previous_log) in caught.value.message
            assert "a bug" in next_one.previous_log.read_text()
            assert "up" in next_one.log.read_text()

    run(main())


def test_the_log_of_one_whose_node_was_lost_is_kept(process: MakeProcess) -> None:
    async def main() -> None:
        running = process(READY + DEAF)
        running.log.parent.mkdir()
        running.log.write_text("from before")
        async with running:
            assert running.previous_log.read_text() == "from before"

    run(main())


def test_one_that_never_gets_ready_is_given_up(process: MakeProcess) -> None:
    async def main() -> None:
        slow = process(DEAF, HandleTimes(start_s=0.01))
        with pytest.raises(EngineError, match=r"did not start .*engine\.previous\.log"):
            await slow.handle.start()
        assert slow.handle._process is not None
        assert slow.handle._process.returncode is not None

    run(main())


def test_a_program_that_is_not_there_is_an_error(
    process: MakeProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))

    async def main() -> None:
        missing = process(READY)
        with pytest.raises(EngineError, match="cannot be started"):
            await missing.handle.start()
        await missing.handle.stop()

    run(main())


@pytest.mark.parametrize(
    "program",
    [
        READY + "time.sleep(60)\n",
        READY + "while True:\n    read_frame(sys.stdin.buffer)\n    say(Health(is_stuck=True))\n",
    ],
)
def test_one_that_hangs_is_killed_and_named(process: MakeProcess, program: str) -> None:
    async def main() -> None:
        times = HandleTimes(watch=WatchTimes(interval_s=0.2))
        running = process(program, times)
        await running.handle.start()
        await until(lambda: running.exits)
        [error] = running.exits
        assert "compute process of Desk did not answer" in error.message
        assert error.data["is_hung"] is True
        await running.handle.stop()

    run(main())


def test_one_that_does_not_end_when_asked_is_killed(process: MakeProcess) -> None:
    async def main() -> None:
        async with process(
            READY + "while True: time.sleep(60)", HandleTimes(stop_s=0.01)
        ) as stubborn:
            pass
        assert stubborn.handle._process is not None
        assert stubborn.handle._process.returncode not in (None, 0)

    run(main())


def test_what_was_asked_of_one_that_dies_is_answered_with_an_error(process: MakeProcess) -> None:
    async def main() -> None:
        async with process(READY + "hear(); sys.exit(3)") as dying:
            with pytest.raises(EngineError, match="status 3"):
                await dying.handle.profile(Profile(config={}, scheme="f32", tokens=8))
            await until(lambda: dying.exits)

            assert len(dying.exits) == 1
            with pytest.raises(EngineError, match="not running"):
                await dying.handle.unload()

    run(main())


def test_a_load_of_one_that_dies_is_answered_with_an_error(process: MakeProcess) -> None:
    program = "hear(); say(LoadProgress(epoch=1, done=1, total=2)); sys.exit(9)"

    async def main() -> None:
        async with process(READY + program) as dying:
            seen: list[int] = []
            with pytest.raises(EngineError, match="status 9"):
                await dying.handle.load(LOAD, lambda progress: seen.append(progress.done))
            assert seen == [1]

    run(main())


def test_one_that_speaks_nonsense_is_ended(process: MakeProcess) -> None:
    async def main() -> None:
        nonsense = r"""
hear(); sys.stdout.buffer.write(b"\0\0\0\x04what"); sys.stdout.buffer.flush(); time.sleep(60)"""
        async with process(READY + nonsense) as confused:
            with pytest.raises(EngineError):
                await confused.handle.profile(Profile(config={}, scheme="f32", tokens=8))
            await until(lambda: confused.exits)

    run(main())


def test_one_that_announces_an_endless_message_is_ended(process: MakeProcess) -> None:
    async def main() -> None:
        endless = r"""
hear(); sys.stdout.buffer.write(b"\xff" * 8); sys.stdout.buffer.flush(); time.sleep(60)"""
        async with process(READY + endless) as confused:
            with pytest.raises(EngineError):
                await confused.handle.profile(Profile(config={}, scheme="f32", tokens=8))

    run(main())


def test_the_wrong_answer_is_an_error(process: MakeProcess) -> None:
    async def main() -> None:
        async with process(READY + "say(StageUnloaded(re=hear().id))\n" + DEAF) as odd:
            with pytest.raises(EngineError, match="StageUnloaded"):
                await odd.handle.profile(Profile(config={}, scheme="f32", tokens=8))

    run(main())


def test_a_refusal_is_the_error_that_it_was_there(process: MakeProcess) -> None:
    refusal = """
say(Error(re=hear().id, kind="integrity", message="Altered.",
          data={"digest": "abc"}))
"""

    async def main() -> None:
        async with process(READY + refusal + DEAF) as refusing:
            with pytest.raises(IntegrityError, match="Altered") as caught:
                await refusing.handle.load(LOAD, lambda _: None)
            assert caught.value.data == {"digest": "abc"}

    run(main())


def asking(call: str) -> Callable[[StageHandle], Awaitable[object]]:
    calls: dict[str, Callable[[StageHandle], Awaitable[object]]] = {
        "profile": lambda handle: handle.profile(Profile(config={}, scheme="f32", tokens=8)),
        "load": lambda handle: handle.load(LOAD, lambda _: None),
        "unload": lambda handle: handle.unload(),
    }
    return calls[call]


@pytest.mark.parametrize("call", ["profile", "load", "unload"])
def test_silence_is_an_error_and_not_a_wait_for_ever(process: MakeProcess, call: str) -> None:
    async def main() -> None:
        times = HandleTimes(profile_s=0.01, load_silence_s=0.01, unload_s=0.01)
        async with process(READY + DEAF, times) as silent:
            with pytest.raises(EngineError, match="log is"):
                await asking(call)(silent.handle)
            assert not silent.handle._waiting.keys() - {0}

    run(main())


def test_a_late_word_after_a_load_was_given_up_does_no_harm(process: MakeProcess) -> None:
    program = """
say(LoadProgress(epoch=1, done=1, total=2))     # hear() below is the load
hear()
say(LoadProgress(epoch=1, done=1, total=2))
assert isinstance(hear(), UnloadStage)
say(LoadProgress(epoch=1, done=2, total=2))
say(StageLoaded(re=1, seconds=0.1, memory_bytes=1, cache_tokens=64, layers_kept=0, layers_loaded=1))
say(StageUnloaded(re=hear().id))
"""

    async def main() -> None:
        async with process(READY + program + DEAF) as running:
            seen: list[int] = []
            loading = asyncio.create_task(
                running.handle.load(LOAD, lambda progress: seen.append(progress.done))
            )
            await until(lambda: seen)
            loading.cancel()
            await asyncio.wait([loading])
            await running.handle.unload()

            assert 2 not in seen
            assert running.exits == []

    run(main())


def test_what_happens_by_itself_is_told(process: MakeProcess) -> None:
    program = """
less = DeviceInfo(kind="cpu", name="fake", memory_total=10, memory_free=1)
say(Memory(devices=(less,)))
say(StepFailed(epoch=1, session="s", step=2, kind="engine", message="No."))
"""

    async def main() -> None:
        async with process(READY + program + DEAF) as running:
            await until(lambda: running.failures)
            assert running.memory == [1]
            assert running.failures[0].message == "No."

    run(main())


def test_what_the_owner_says_reaches_it(process: MakeProcess) -> None:
    program = """
settings = hear()
assert (settings.memory_limit, settings.threads) == (99, 2)
say(StageUnloaded(re=hear().id))
"""

    async def main() -> None:
        async with process(READY + program + DEAF) as running:
            running.handle.change(StageSettings(memory_limit=99, threads=2))
            await running.handle.unload()

    run(main())


def test_what_it_lends_is_known_when_it_has_answered_the_last_settings(
    process: MakeProcess,
) -> None:
    program = """
def lend(nbytes, settings=None):
    device = DeviceInfo(kind="cpu", name="fake", memory_total=10, memory_free=nbytes)
    say(Memory(devices=(device,), re=settings and settings.id))
first, last = hear(), hear()
lend(4, first)
lend(3)
lend(2, last)
hear()
"""

    async def main() -> None:
        async with process(READY + program) as running:
            await running.handle.settled()
            running.handle.change(StageSettings(memory_limit=9))
            running.handle.change(StageSettings(memory_limit=2))
            await running.handle.settled()
            assert running.memory == [4, 3, 2]
            running.handle.change(StageSettings(memory_limit=1))
            await running.handle.settled()  # it has ended

    run(main())


def test_one_that_does_not_answer_settings_is_not_waited_for(process: MakeProcess) -> None:
    async def main() -> None:
        async with process(READY + DEAF, HandleTimes(settle_s=0.01)) as deaf:
            deaf.handle.change(StageSettings(memory_limit=1))
            await deaf.handle.settled()
            assert deaf.handle.devices[0].memory_free == 5

    run(main())


def test_it_is_idle_when_it_holds_nothing_and_is_asked_nothing(process: MakeProcess) -> None:
    program = """
STAGE = HeldStage(device=DeviceId(kind="cpu"), model_id="ab" * 32, scheme="f32", layers=(0, 1), embedding=True, head=True, epoch=1)
HELD = Held(home="ab" * 32, stage=STAGE)
load = hear()
say(Holds(held=HELD))
say(StageLoaded(re=load.id, seconds=0.1, memory_bytes=1, cache_tokens=64, layers_kept=0, layers_loaded=1))
unload = hear()
say(Holds(held=None))
say(StageUnloaded(re=unload.id))
"""

    async def main() -> None:
        async with process(READY + program + DEAF) as running:
            assert running.handle.is_idle
            loading = asyncio.create_task(running.handle.load(LOAD, lambda _: None))
            await until(lambda: len(running.handle._waiting) > 1 or loading.done())
            assert not running.handle.is_idle
            await loading
            assert not running.handle.is_idle
            await running.handle.unload()
            assert running.handle.is_idle

    run(main())


def test_one_of_several_devices_that_dies_is_named(process: MakeProcess) -> None:
    two = """
DEVICES = (DEVICE, DeviceInfo(kind="cpu", index=1, memory_total=10, memory_free=5))
say(Ready(devices=DEVICES, activation_port=4711))
hear()
"""

    async def main() -> None:
        async with process(two) as dying:
            with pytest.raises(EngineError, match="of Desk/cpu:0 stopped"):
                await dying.handle.profile(Profile(config={}, scheme="f32", tokens=8))

    run(main())
