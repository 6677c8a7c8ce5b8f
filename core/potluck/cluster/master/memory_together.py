"""Whether a model has room in the memory that the computers lend together, before anything is measured."""

from functools import partial

from potluck.api.values.schema import PlanRequest
from potluck.cluster.computer import Computers
from potluck.cluster.master.ages import naming_old
from potluck.cluster.master.asked import (
    context_of,
    counted_devices,
    shape_asked,
)
from potluck.cluster.master.device_costs import unmeasured_devices
from potluck.cluster.master.searching import search_in_thread
from potluck.errors import (
    NotEnoughMemoryError,
    OutOfMemoryError,
    format_bytes,
)
from potluck.model.footprint import working_bytes
from potluck.model.schemes import Scheme
from potluck.plan.problems import lacking_memory
from potluck.store.registry import LocalModel

_BEST_FIRST: tuple[Scheme, ...] = ("bf16", "int8", "int4-head8", "int4")


class MemoryTogether:
    """The memory of all computers that are there.

    Args:
        computers: this computer and the connected workers.
        search_s: longest time of a search.
    """

    def __init__(self, computers: Computers, search_s: float) -> None:
        self._computers, self._search_s = computers, search_s

    async def check(self, scheme: Scheme, request: PlanRequest, model: LocalModel) -> None:
        """Refuse a model that does not fit in the memory of all computers, before measuring.

        Raises:
            NotEnoughMemoryError: names the scheme in which the model would fit, if there is one.
        """
        if not (lacking := await self.lacking(scheme, request, model)):
            return
        needed = shape_asked(scheme, request, model).model_memory
        fits_in: Scheme | None = None
        for smaller in _BEST_FIRST:
            is_smaller = shape_asked(smaller, request, model).model_memory < needed
            if is_smaller and not await self.lacking(smaller, request, model):
                fits_in = smaller
                break
        error = NotEnoughMemoryError(needed, needed - lacking, fits_in=fits_in)
        raise naming_old(error, self._computers.available(), model.config, scheme)

    async def lacking(self, scheme: Scheme, request: PlanRequest, model: LocalModel) -> int:
        """How many bytes of memory the model lacks.

        0 also if some devices are not known yet, and if the search did not end in time.
        """
        devices = unmeasured_devices(
            (self._computers.local, *self._computers.available()),
            model.config,
            scheme,
            working=working_bytes(model.config, context_of(request, model)),
        )
        if devices is None:
            return 0
        counted = counted_devices(devices, scheme, request, model)
        search = partial(lacking_memory, shape_asked(scheme, request, model), counted)
        return await search_in_thread(search, limit_s=self._search_s)


def explain_fewer_bits(scheme: Scheme, error: NotEnoughMemoryError | OutOfMemoryError) -> str:
    """A sentence for people: why the model does not fit in this scheme, with the bytes."""
    match error.data:
        case {"computer": str(name), "needed": int(needed), "available": int(available)}:
            why = f"{name}'s share needs {format_bytes(needed)} with its cache, and it offers"
        case {"computer": None, "needed": int(needed), "available": int(available)}:
            why = f"the model needs {format_bytes(needed)} with its cache, and your computers offer"
        case _:  # the error has no such figures: this computer has no room for a single layer
            return f"In {scheme} the model does not fit; this is the best quality that fits."
    return f"In {scheme} {why} {format_bytes(available)}; this is the best quality that fits."
