"""Wait for computers: those that a request asks for, those that are being discovered, and lost ones."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from potluck.api.values.schema import PlanRequest
from potluck.cluster.computer import Computer, Computers
from potluck.cluster.device_names import computer_of
from potluck.cluster.master.deadlines import PlanningDeadlines
from potluck.errors import InvalidLayersError, UsageError
from potluck.plan.byhand import check_sum


class Arrivals:
    """Waits for computers, each time within a deadline."""

    def __init__(self, computers: Computers, deadlines: PlanningDeadlines) -> None:
        self._computers = computers
        self._deadlines = deadlines

    async def wait(self, request: PlanRequest, num_layers: int, *, settle: bool) -> None:
        """Wait for the workers that the request asks for.

        Raises:
            InvalidLayersError: workers with these names did not come in time or lend nothing, or the
                layers of the request are not those of the model.
            UsageError: too few workers came in time.
        """
        if request.layers is not None:
            check_sum(request.layers, num_layers)
        own = self._computers.local.name.casefold()
        asked = (*(name for name, _ in request.layers or ()), *request.prefill)
        asked += () if request.pictures is None else (request.pictures,)
        wanted = [_computers_of(name) for name in asked]
        wanted = [either for either in wanted if not any(names <= {own} for names in either)]
        names = {name for either in wanted for some in either for name in some}

        def all_there() -> bool:
            here = self._computers.available()
            present = {own, *(computer.name.casefold() for computer in here)}
            are_here = all(any(names <= present for names in either) for either in wanted)
            return len(here) >= request.workers and are_here

        for name, why in self._computers.withheld().items():
            if name.casefold() in names:  # to wait for it would be in vain
                raise InvalidLayersError(f"{name} {why}, so it cannot take part now.")
        if not request.workers and not names:
            if settle:
                await self._settle()
            return
        limit = self._deadlines.workers_s if request.workers else self._deadlines.names_s
        try:
            async with asyncio.timeout(limit), self._computers.changed:
                await self._computers.changed.wait_for(all_there)
        except TimeoutError:
            here = ", ".join(c.name for c in self._computers.available()) or "none"
            if request.workers:
                raise UsageError(
                    f"{request.workers} other computers should take part, and within"
                    f" {limit:.0f} seconds these came: {here}. Start Potluck on the others,"
                    " pair them, and see `potluck devices`."
                ) from None
            raise InvalidLayersError(
                f"The layers name computers that are not here. Here are: {here}, and this one,"
                f" {self._computers.local.name}."
            ) from None

    async def _settle(self) -> None:
        """Wait a moment for paired computers that a node has not found yet just after its start."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._deadlines.settle_s), self._computers.changed:
                await self._computers.changed.wait_for(lambda: not self._computers.expected())

    async def somebody_came(self, workers: Sequence[Computer], ends_at: float) -> bool:
        """Wait until a computer is here that is not among the workers; False: none came in time."""
        before = {worker.node_id for worker in workers}

        def is_new() -> bool:
            return any(c.node_id not in before for c in self._computers.available())

        with suppress(TimeoutError):
            async with asyncio.timeout_at(ends_at), self._computers.changed:
                await self._computers.changed.wait_for(is_new)
        return is_new()


def _computers_of(places: str) -> tuple[set[str], ...]:
    """The computers of a rank group; or, since a plus may also be a part of a name, the one of that name."""
    one = {computer_of(places).casefold()}
    if "+" not in places:
        return (one,)
    return one, {computer_of(place.strip()).casefold() for place in places.split("+")}
