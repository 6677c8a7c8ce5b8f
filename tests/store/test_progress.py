import pytest

from potluck.store.progress import TransferMeter, TransferProgress


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A meter of 1000 bytes, its clock, and the last that it told."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.last: TransferProgress | None = None
        self.meter = TransferMeter(1000, self.clock, self._told)

    def _told(self, progress: TransferProgress) -> None:
        self.last = progress

    def after(self, seconds: float, nbytes: int) -> TransferProgress:
        self.clock.now += seconds
        self.meter.add(nbytes)
        assert self.last is not None
        return self.last


def test_the_rate_is_that_of_the_bytes_that_came():
    watched = Watched()

    progress = watched.after(2.0, 200)

    assert progress == TransferProgress(sent=200, total=1000, bytes_per_s=100.0)


def test_nothing_yet_has_no_rate():
    assert Watched().after(0.0, 10).bytes_per_s == 0
    assert Watched().after(3.0, 0).bytes_per_s == 0


def test_rate_follows_the_last_seconds_and_forgets_those_before():
    watched = Watched()
    for _ in range(10):
        watched.after(1.0, 10)

    *_, progress = (watched.after(1.0, 50) for _ in range(5))

    assert progress.bytes_per_s == pytest.approx(50)


def test_pause_lowers_the_rate_instead_of_being_forgotten():
    watched = Watched()
    watched.after(1.0, 100)

    assert watched.after(20.0, 100).bytes_per_s == pytest.approx(100 / 20)


def test_many_small_steps_keep_few_samples():
    watched = Watched()

    *_, progress = (watched.after(0.001, 2) for _ in range(10_000))

    assert progress.bytes_per_s == pytest.approx(2000, rel=0.05)
    assert len(watched.meter._samples) < 60
