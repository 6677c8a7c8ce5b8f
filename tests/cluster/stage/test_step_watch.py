"""A step that hangs is told from one that is slow by what such steps took before."""

from potluck.cluster.stage.step_watch import FACTOR, FIRST_ROWS, FIRST_S, LEAST_S, ROOM_S, StepWatch


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def watched(*steps: tuple[str, int, float]) -> tuple[StepWatch, Clock]:
    """A watch that has seen these steps: kind, tokens, seconds."""
    clock = Clock()
    watch = StepWatch(clock)
    for kind, tokens, seconds in steps:
        watch.begin(kind, tokens)
        clock.now += seconds
        watch.end()
    return watch, clock


def stuck_after(watch: StepWatch, clock: Clock, kind: str, tokens: int) -> float:
    """The seconds after which a step counts as stuck, to within a tenth."""
    watch.begin(kind, tokens)
    began = clock.now
    while not watch.is_stuck:
        clock.now += 0.1
    return round(clock.now - began, 1)


def test_who_computes_nothing_is_not_stuck() -> None:
    watch, clock = watched(("token", 1, 0.01))
    clock.now += 1000
    assert not watch.is_stuck


def test_the_first_step_of_a_kind_has_minutes() -> None:
    assert stuck_after(*watched(), "token", 1) >= FIRST_S
    assert stuck_after(*watched(("token", 1, 0.01)), "chunk", 256) >= FIRST_S
    assert stuck_after(*watched(), "picture", 4 * FIRST_ROWS) >= 4 * FIRST_S


def test_a_fast_step_has_seconds() -> None:
    assert LEAST_S <= stuck_after(*watched(("token", 1, 0.01)), "token", 1) < LEAST_S + 0.5


def test_a_control_message_has_seconds_also_the_first_one() -> None:
    assert LEAST_S <= stuck_after(*watched(), "control", 1) < LEAST_S + 0.5
    assert LEAST_S <= stuck_after(*watched(("control", 1, 3.0)), "control", 1) < LEAST_S + 0.5


def test_room_for_a_prompt_has_minutes_also_after_one_that_was_quick() -> None:
    assert stuck_after(*watched(("room", 1, 0.001)), "room", 1) >= ROOM_S


def test_a_long_chunk_on_a_slow_computer_has_the_time_that_it_takes() -> None:
    slow = watched(("chunk", 16, 4.0), ("chunk", 256, 30.0))
    assert stuck_after(*slow, "chunk", 256) >= FACTOR * 256 * 4.0 / 16


def test_who_waits_for_another_computer_is_not_stuck_and_has_its_own_time_afterwards() -> None:
    watch, clock = watched(("token", 1, 0.01))
    watch.begin("token", 1)
    with watch.waiting():
        clock.now += 1000
        assert not watch.is_stuck
    assert not watch.is_stuck
    clock.now += LEAST_S + 0.5
    assert watch.is_stuck
