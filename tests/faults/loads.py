"""A load that goes on while a fault happens to it."""

import threading
import time

import msgspec

from faults.cluster import MASTER, WORKERS
from faults.host import Host, NodeClient
from faults.judging import Judgement, judge_error
from faults.models import LAYERS
from potluck.api.values.schema import PlanRequest
from potluck.errors import PotluckError

POLL_S = 0.002


class Load(threading.Thread):
    """A load under way."""

    def __init__(self, client: NodeClient, request: PlanRequest) -> None:
        super().__init__(daemon=True)
        self._error: PotluckError | None = None
        self._client, self._request = client, request
        self._shares: dict[str, float] = {}
        self.start()

    def run(self) -> None:
        try:
            for progress in self._client.load(self._request):
                for sent in progress.nodes:
                    self._shares[sent.name] = sent.sent / max(sent.total, 1)
        except PotluckError as error:
            self._error = error

    def wait_for_share(self, name: str, share: float) -> None:
        """Wait until so much of what this computer lacks was sent to it, or the load is over."""
        while self._shares.get(name, 0.0) < share and self.is_alive():
            time.sleep(POLL_S)

    def judgement(self) -> Judgement | None:
        """Return how the load is judged; None: it is done, and the answers are judged."""
        if self.is_alive():
            return Judgement("lost", "the load did not end")
        if self._error is not None:
            return judge_error(self._error.message, self._error.code)
        return None


def by_hand(request: PlanRequest, victim: Host) -> PlanRequest:
    """Share the layers out by hand among the master, this worker and another one."""
    other = next(name for name in WORKERS if name != victim.name)
    layers = tuple((name, LAYERS // 3) for name in (MASTER, victim.name, other))
    return msgspec.structs.replace(request, layers=layers)
