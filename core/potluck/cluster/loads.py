"""Loads as the local API shows them: their progress, and a model that is loaded to be measured."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from potluck.api.values.benching import BenchProgress, BenchRequest
from potluck.api.values.schema import LoadProgress
from potluck.cluster.activity import Activity
from potluck.cluster.master.bench import Bench, check_context, with_room
from potluck.cluster.master.master import Master
from potluck.cluster.membership.membership import Members
from potluck.cluster.views import load_progress
from potluck.errors import UsageError
from potluck.ids import NodeId

INTERVAL_S = 0.1  # between two events of a load


async def progress_of(
    loading: asyncio.Task[Any], master: Master, activity: Activity
) -> AsyncGenerator[LoadProgress, None]:
    """Yield the progress of a load until it is over. Closing the iterator ends the load."""
    try:
        revision = activity.revision
        while not loading.done():
            progress = load_progress(master)
            if progress.state not in ("ready", "failed"):  # these belong to the load before
                yield progress
            await asyncio.sleep(INTERVAL_S)
            change = asyncio.create_task(activity.changed(revision))
            await asyncio.wait((loading, change), return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
            revision = activity.revision
    finally:
        loading.cancel()


async def bench(
    master: Master, members: Members, activity: Activity, request: BenchRequest
) -> AsyncGenerator[BenchProgress, None]:
    """Load a model, and yield what is measured of it. Closing the iterator ends the bench."""

    def link_ms(source: NodeId, target: NodeId, nbytes: int) -> float:
        """Milliseconds of a message between two computers on the measured link; 0 if unknown."""
        link = master.measurements.links.between(source, target)  # a node has none to itself
        return link.rtt_ms / 2 + 1000 * nbytes / link.bytes_per_s if link is not None else 0.0

    request = with_room(request)
    async with master.borrowed(request.plan):
        check = partial(check_context, request)
        anew = request.threads is not None  # a loaded model keeps its number of threads
        loading = asyncio.create_task(master.load(request.plan, anew=anew, check=check))
        async with aclosing(progress_of(loading, master, activity)) as events:
            async for step in events:
                yield BenchProgress(state="loading", fraction=step.fraction, load=step)
        mine = await loading
        deployment, generator = await master.ready(request.plan)
        if deployment is not mine:
            raise UsageError("Another model was loaded meanwhile. Measure again.")
        if deployment.planned.replicas_wanted > 1:
            yield BenchProgress(state="measuring", message="Loading the other replicas")
            await master.replicas.settled()
        yield BenchProgress(state="measuring", message="Measuring the links")
        used = [worker for worker in members.available() if deployment.uses(worker.node_id)]
        await master.measurements.links.measure(members.local, used, anew=True)
        everyone = {computer.node_id: computer for computer in (members.local, *used)}
        sums = master.measurements.sums
        pairs = [(everyone[a], everyone[b]) for a, b in sums.known() if {a, b} <= everyone.keys()]
        await sums.measure(pairs, anew=True)
        bench = Bench(
            deployment,
            generator,
            request,
            local=members.local.node_id,
            link_ms=link_ms,
            sums=sums.known(),
        )
        async with aclosing(bench.run()) as steps:
            async for progress in steps:
                yield progress
