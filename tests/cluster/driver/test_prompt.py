"""How many tokens of a prompt are sent at once beside the answers of others."""

from potluck.cluster.driver.prompt import PromptPace


def test_a_chunk_holds_up_others_for_no_longer_than_the_slowest_stage_may() -> None:
    pace = PromptPace()
    pace.note(256, (256.0, 512.0))  # 2 ms for a token on the slower one
    assert pace.beside_others(256) == 32  # the next lower multiple of 8 to 70 ms


def test_chunks_are_small_until_one_was_timed() -> None:
    pace = PromptPace()
    pace.note(1, (30.0, 30.0))  # a token is no measure of a chunk
    pace.note(64, ())
    assert pace.beside_others(256) == 16


def test_a_chunk_beside_others_is_never_larger_than_one_alone_and_never_nothing() -> None:
    pace = PromptPace()
    pace.note(256, (2.56,))
    assert pace.beside_others(256) == 256
    pace.note(8, (8000.0,))
    assert pace.beside_others(256) == 8
