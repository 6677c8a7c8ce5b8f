"""Tells the computers of the own home of a newer release, until each of them runs it."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from potluck.api.values.update import HomesVersion
from potluck.cluster.runtime.sharing import Source, WheelClient
from potluck.errors import PotluckError
from potluck.ids import NodeId

logger = logging.getLogger(__name__)

LOOK_S: Final = 5.0  # between two looks whether there is something to tell
AGAIN_S: Final = 600.0  # until one is told again that has something left to do about it


class Telling:
    """Tells of the release that this computer runs, or that its owner wants.

    Args:
        client: of the connections.
        members: the computers of the own home that are found.
        envelope: the release; empty: there is nothing to tell.
        heard: called with what they have answered.
        again_s: seconds until one is told again.
    """

    def __init__(
        self,
        client: WheelClient,
        *,
        members: Callable[[], Sequence[Source]],
        envelope: Callable[[], bytes],
        heard: Callable[[Mapping[str, HomesVersion]], None],
        again_s: float = AGAIN_S,
    ) -> None:
        self._client, self._members, self._envelope = client, members, envelope
        self._heard, self._again_s = heard, again_s
        self._told = b""
        self._answers: dict[str, HomesVersion] = {}
        self._due: dict[NodeId, float] = {}

    async def look(self) -> None:
        """Tell those that are due."""
        envelope = self._envelope()
        if envelope != self._told:
            self._told, self._answers, self._due = envelope, {}, {}
            self._heard({})
        for source in self._members() if envelope else ():
            if time.monotonic() >= self._due.get(source.node_id, 0.0):
                self._due[source.node_id] = time.monotonic() + self._again_s
                await self._tell(source, envelope)
                self._heard(dict(self._answers))

    async def _tell(self, source: Source, envelope: bytes) -> None:
        try:
            answer = await self._client.tell(source, envelope)
        except PotluckError as error:
            logger.info("%s was not told of a newer release: %s", source.name, error)
            return
        if not answer.message:  # it runs that version, or a newer one
            self._due[source.node_id] = math.inf
        self._answers[source.node_id] = HomesVersion(
            name=source.name, version=answer.version, message=answer.message
        )
