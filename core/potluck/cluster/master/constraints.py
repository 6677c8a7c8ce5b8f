"""What a request says about the computers that take part, and the request without it."""

import msgspec

from potluck.api.values.schema import PlanRequest


def has_constraints(request: PlanRequest) -> bool:
    """Whether a request says which computers take part, or how many."""
    return request != without_constraints(request)


def without_constraints(request: PlanRequest) -> PlanRequest:
    """The same request for any computers: without layers by hand, who reads prompts or pictures, and a number of workers."""
    return msgspec.structs.replace(request, layers=None, workers=0, prefill=(), pictures=None)
