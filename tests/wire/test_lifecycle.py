"""The table of states."""

from potluck.wire.lifecycle import ENDED, TRANSITIONS, State, Step


def test_the_table_of_states_says_everything() -> None:
    assert set(TRANSITIONS) == set(State)
    assert all(not TRANSITIONS[state] for state in ENDED)
    reachable = {s for table in TRANSITIONS.values() for s in table.values()}
    assert reachable | {State.QUIET, State.AWAITING_HELLO} == set(State)
    for state in State:
        if state not in (State.QUIET, *ENDED):
            assert Step.END_OF_STREAM in TRANSITIONS[state]
            assert Step.SILENCE in TRANSITIONS[state]
