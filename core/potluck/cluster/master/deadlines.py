"""How long a master waits before and while it plans."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningDeadlines:
    """How long planning waits for computers, and how long it searches; in seconds."""

    workers_s: float = 120.0  # for a requested number of workers
    names_s: float = 20.0  # for workers requested by name: discovery takes a second or two
    settle_s: float = 3.0  # at the start: mDNS answers within a second, connections take less
    improve_s: float = 2.0  # after a computer came: others that come as well are weighed with it
    quiet_s: float = 3.0  # without a request before spare copies are sent: people answer an answer
    answers_s: float = 20.0  # for the answers under way, before a faster plan interrupts them
    return_s: float = 10.0  # in a recovery, for lost computers that the model does not fit without
    search_s: float = 2.0  # then the best plan so far is taken; 20 devices take about one second
    replicas_s: float = (
        8.0  # the same where the model is held several times: each division is a plan
    )
    readers_s: float = 20.0  # before readers, and lost replicas the first time, are prepared again


DEADLINES = PlanningDeadlines()
