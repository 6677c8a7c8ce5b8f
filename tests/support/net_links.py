"""Both ends of a connection between a master and its worker, over loopback."""

from contextlib import asynccontextmanager

from potluck.wire.activation_messages import Forward, TensorHeader

DIGEST = "ab" * 32


@asynccontextmanager
async def linked(house, purpose="control", **listening):
    """Yield both ends of one connection: the master's link and the worker's."""
    master, worker, home = house.pair()
    async with worker.listening(**listening):
        ours = await master.dial(worker, home, purpose)
        theirs = await worker.links.get()
        try:
            yield ours, theirs
        finally:
            ours.close()
            await ours.wait_closed()


def forward(payload: bytes) -> Forward:
    shape = (len(payload),)
    return Forward(
        epoch=1, session="s", step=1, position=0, tensor=TensorHeader(dtype="U8", shape=shape)
    )
