"""What both ways of pairing share."""

from potluck.wire.pairing import SENTENCES, AttemptLimit


def test_a_stranger_may_try_a_few_times_a_minute() -> None:
    limit = AttemptLimit()
    first = [limit.allow("10.0.0.5", now=float(n)) for n in range(6)]

    assert first == [True] * 5 + [False]
    assert not limit.allow("10.0.0.5", now=59)
    assert limit.allow("10.0.0.5", now=60)


def test_one_stranger_does_not_lock_another_out() -> None:
    limit = AttemptLimit()
    for _ in range(5):
        limit.allow("10.0.0.5", now=0)

    assert limit.allow("10.0.0.6", now=0)


def test_many_addresses_are_limited_together_and_cost_no_memory() -> None:
    limit = AttemptLimit()
    allowed = [limit.allow(f"10.0.{n}.1", now=n / 100) for n in range(1000)]

    assert sum(allowed) == 20


def test_a_refused_attempt_does_not_lengthen_the_wait() -> None:
    limit = AttemptLimit()
    for second in range(60):
        limit.allow("10.0.0.5", now=float(second))

    assert limit.allow("10.0.0.5", now=61)


def test_every_refusal_is_a_sentence_for_a_person() -> None:
    for sentence in SENTENCES.values():
        assert sentence[0].isupper()
        assert sentence.endswith(".")
