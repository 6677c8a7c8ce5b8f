"""When a plan in force is weighed against a better one, as pure functions of the master's state.

A computer that came, or came back, may make answers faster. The plan is made beside the running
one (`ImproveWish`), which answers prompts meanwhile, and gives way to whatever else is asked for. So
is the plan without a computer that says that it leaves.
"""

from potluck.cluster.master.constraints import has_constraints, without_constraints
from potluck.cluster.master.state import State, leavers
from potluck.cluster.master.vocabulary import MakePlan


def can_be_improved(state: State) -> bool:
    """Whether a computer came that the plan in force was not weighed with, or one of it leaves."""
    return not state.wishes and state.work is None and improvement(state) is not None


def improvement(state: State) -> MakePlan | None:
    """The plan to be made beside the one in force; None: there is none to be made.

    What was asked for certain computers is restored when they are all back. What was asked for any
    computers is weighed with each that came.
    """
    if not state.is_ready or state.asked is None:
        return None
    if leavers(state) - state.needed:
        return MakePlan(
            request=without_constraints(state.asked),
            settle=False,
            is_improvement=True,
            is_handover=True,
        )
    if state.here <= state.weighed or state.asked.replicas > 1:  # those are planned one by one
        return None
    if has_constraints(state.asked) and not (state.missing and state.missing <= state.here):
        return None
    return MakePlan(request=state.asked, settle=False, is_improvement=True)
