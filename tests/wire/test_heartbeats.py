"""Who is silent for how long is lost, and who only slept is not."""

import pytest
from connection_pair import Pair, bytes_of, receive, sent_by, silent_for

from potluck.wire.connection import HEARTBEAT_INTERVAL_S, LOST_AFTER_S
from potluck.wire.events import Closed, Lost
from potluck.wire.lifecycle import State
from potluck.wire.messages import Ping, Pong


def test_heartbeats_go_both_ways_and_measure_the_round_trip(pair: Pair) -> None:
    start = pair.now
    assert pair.a.tick(start) == start + HEARTBEAT_INTERVAL_S
    assert pair.b.tick(start) == start + HEARTBEAT_INTERVAL_S
    due = start + HEARTBEAT_INTERVAL_S
    following = pair.a.tick(due)
    pair.now = due + 0.02
    pair.carry()

    assert pair.a.rtt_s == pytest.approx(0.02)
    assert following == due + HEARTBEAT_INTERVAL_S
    assert pair.events[pair.a] == pair.events[pair.b] == []  # heartbeats are nobody's business


def test_the_round_trip_is_smoothed(pair: Pair) -> None:
    now = pair.now
    for delay in (0.08, 0.16):
        now += HEARTBEAT_INTERVAL_S
        pair.a.tick(now)
        pair.now = now + delay
        pair.carry()

    assert pair.a.rtt_s == pytest.approx(0.09)


def test_of_the_last_round_trips_the_shortest_says_what_the_link_does(pair: Pair) -> None:
    now, least = pair.now, list[float | None]()
    for delay in (0.004, 0.3, 0.3, 0.2):
        now += HEARTBEAT_INTERVAL_S
        pair.a.tick(now)
        pair.now = now + delay
        pair.carry()
        least.append(pair.a.least_rtt_s)

    assert least == [None, None, pytest.approx(0.004), pytest.approx(0.2)]


def test_one_lost_heartbeat_is_no_death_and_two_are_none(pair: Pair) -> None:
    assert silent_for(pair.a, pair.now, 2 * HEARTBEAT_INTERVAL_S + 0.8) == []
    assert pair.a.state is State.OPEN


def test_three_missed_heartbeats_are_a_lost_peer_within_three_seconds(pair: Pair) -> None:
    (event,) = silent_for(pair.a, pair.now, 3.0)

    assert isinstance(event, Lost)
    assert "Computer b has not been heard for 2.8 seconds" in event.reason
    assert pair.a.state is State.LOST
    assert pair.a.tick(pair.now + 10) is None


def test_the_last_moment_is_counted_from_the_last_byte(pair: Pair) -> None:
    """Any byte counts, so that a peer in the middle of a large frame is alive."""
    pair.a.tick(pair.now)
    receive(pair.a, b"P", pair.now + 2)

    assert silent_for(pair.a, pair.now + 2.1, LOST_AFTER_S - 0.2) == []


def test_our_own_sleep_is_not_the_peers_silence(pair: Pair) -> None:
    """A laptop that was closed for an hour asks before it gives anybody up."""
    when = pair.a.tick(pair.now)
    assert when is not None
    awake = when + 3600
    following = pair.a.tick(awake)

    assert pair.a.next_event() is None
    assert following is not None
    pair.now = awake
    pair.carry()  # the peer answers the heartbeat of just now
    assert silent_for(pair.a, awake, 2 * HEARTBEAT_INTERVAL_S) == []


def test_after_our_own_sleep_a_dead_peer_is_noticed_as_quickly(pair: Pair) -> None:
    when = pair.a.tick(pair.now)
    assert when is not None
    (event,) = silent_for(pair.a, when + 3600, 3.0)

    assert isinstance(event, Lost)


def test_a_peer_that_reads_and_sends_but_answers_no_heartbeat_costs_no_memory(pair: Pair) -> None:
    now = pair.now
    for _ in range(1000):
        now += HEARTBEAT_INTERVAL_S
        receive(pair.a, bytes_of(Pong(re=0)), now)
        pair.a.tick(now)
        pair.a.data_to_send()

    assert len(pair.a._beats) <= 16


def test_only_control_connections_beat() -> None:
    pair = Pair("weights").open()

    assert pair.a.tick(pair.now) is None


def test_a_ping_of_the_peer_is_answered_at_once(pair: Pair) -> None:
    receive(pair.b, bytes_of(Ping(id=77)), 100)
    pair.drain(pair.b)

    assert sent_by(pair.b) == [Pong(re=77)]


def test_a_leaver_that_hears_nothing_more_is_done(pair: Pair) -> None:
    pair.a.goodbye()
    (event,) = silent_for(pair.a, pair.now, 3.0)

    assert isinstance(event, Closed)
