"""This stage process as one rank of a group: it computes its share of each layer, and sums with the others.

Rank 0 is a stage as any other: steps come to it, and it sends their results on. What it computes, it also has the
other ranks compute, at the same time: it passes on each message that changes a session, and each step as soon as it
was checked and has its room. The others do these in that order. They say nothing of a step but their parts of its
sums, or that they cannot do it (`net/rank_links.py`). Processes of one computer sum in memory that they share
(`engine/rank_sums/shared_sums.py`), or on their devices (`collective.py`); their connections then say only who cannot do a
step, and who is gone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from potluck.engine.payload import to_payload
from potluck.engine.rank_sums.collective import CollectiveExchange
from potluck.engine.rank_sums.ranks import NativeSum
from potluck.engine.rank_sums.shared_memory import SharedMemory
from potluck.engine.session import StepTokens
from potluck.errors import EngineError, PeerLostError, PotluckError
from potluck.net.rank_links import PATIENCE_S, RankLinks
from potluck.net.step_link import StepLink
from potluck.wire.activation_messages import Forward, StepPictures
from potluck.wire.frame import Buffer
from potluck.wire.messages import Message

if TYPE_CHECKING:
    from potluck.engine.rank_sums.shared_sums import SharedSums

T = TypeVar("T")
_NOTHING = bytes(4)  # a part of a sum that only says that its rank is there
Waiting = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The connections of a rank with the others of its group."""

    sums: Mapping[int, StepLink]  # by rank
    steps: Sequence[StepLink]  # over which rank 0 passes steps on; none on the other ranks
    # In which, or on which, they sum; with neither, over the connections.
    memory: SharedMemory | None = None
    devices: CollectiveExchange | None = None

    @property
    def all(self) -> tuple[StepLink, ...]:
        return (*self.sums.values(), *self.steps)

    def close(self) -> None:
        for link in self.all:
            link.close()
        if self.devices is not None:
            self.devices.abort()


class Ranks:
    """The group that this process belongs to, and the `Exchange` of its layers. It lives as long as the process.

    While there is no group, it is rank 0 of 1, and a sum is what was given. Used on the computing thread, but
    for what `join` was given, which anybody may close.
    """

    def __init__(self, waiting: Waiting = nullcontext, patience_s: float = PATIENCE_S) -> None:
        """`waiting` is entered while another rank computes its part, and this one sleeps: so long at most for one sum."""
        self._waiting, self._patience_s = waiting, patience_s
        self._sums: RankLinks | None = None
        self._shared: SharedSums | None = None
        self._devices: CollectiveExchange | None = None
        self._steps: Sequence[StepLink] = ()
        self._step = 0  # the number of the one that was begun last
        self._summed = 0  # how many sums of it were made
        self._is_alone = False

    @property
    def rank(self) -> int:
        return 0 if self._sums is None else self._sums.rank

    @property
    def world(self) -> int:
        return 1 if self._sums is None else self._sums.world

    def join(self, rank: int, links: Links | None) -> None:
        """Be this rank of a group from now on. Without links: belong to none."""
        self._steps = () if links is None else links.steps
        self._sums = (
            None
            if links is None
            else RankLinks(
                rank,
                links.sums,
                steps=links.steps,
                waiting=self._waiting,
                patience_s=self._patience_s,
            )
        )
        self._step = 0
        self._shared = None
        if self._devices is not None:
            self._devices.abort()
        self._devices = None if links is None else links.devices
        if self._sums is not None and links is not None and links.memory is not None:
            self._shared = self._share(self._sums, links.memory)

    def _share(self, links: RankLinks, memory: SharedMemory) -> "SharedSums":
        # Imported only where it is needed, since it imports llvmlite, which not every computer has.
        from potluck.engine.rank_sums.shared_sums import SharedSums

        return SharedSums(
            memory,
            links.rank,
            links.world,
            look=lambda: links.look(self._step),
            waiting=self._waiting,
            patience_s=self._patience_s,
        )

    # --- rank 0

    def pass_on(self, message: Message, payload: Buffer = b"") -> None:
        """Have the other ranks do what a message says of a session, or read its picture: each has the tower."""
        for link in self._steps:
            with suppress(PeerLostError):  # its end is noticed where it is watched
                link.send_nowait(message, payload)

    @contextmanager
    def lead(self, steps: Sequence[StepTokens]) -> Iterator[None]:
        """Have the other ranks compute steps that are computed in this block: the `together` of a stage."""
        if not self._steps:  # there is no group, or this is not its rank 0
            yield
            return
        number = self._step + 1
        with self.step(number):  # which some have heard of, even if others cannot
            for more, tokens in zip(reversed(range(len(steps))), steps, strict=True):
                message, data = _passed_on(tokens, number, more)
                for link in self._steps:
                    link.send_nowait(message, data)
            yield

    # --- all ranks

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Do a step within this block. If it fails, the other ranks give it up as well.

        Args:
            number: that rank 0 has given to the step.
        """
        self._step, self._summed = number, 0
        if self._shared is not None:
            self._shared.begin(number)
        try:
            yield
        except PotluckError as error:
            self._abort(number, error)
            raise
        except BaseException:
            self._abort(number, EngineError("A computer of the group failed in a step."))
            raise

    def _abort(self, number: int, error: PotluckError) -> None:
        if self._sums is not None:
            self._sums.abort(number, error)
        if self._devices is not None and self._summed:  # where others may wait for this rank
            self._devices.abort()

    def abort(self) -> None:
        """Do nothing: the others hear from `step` why it is given up, and what they do depends on that."""

    @property
    def native(self) -> NativeSum | None:
        """What generated code calls, where ranks share memory."""
        return None if self._is_alone else self._shared

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Compute without the other ranks within this block, to see how long that takes. Results are wrong."""
        self._is_alone = True
        try:
            yield
        finally:
            self._is_alone = False

    def sum(self, rows: Tensor) -> None:
        """Replace rows by the sum of all ranks' rows, with the same bits on every rank.

        Args:
            rows: (T, D) in f32, this rank's part.

        Raises:
            PotluckError: as `RankLinks.gather`, or `SharedSums.sum`.
        """
        if self._sums is None or self._is_alone:
            return
        if self._devices is not None:
            self._sum_on(self._devices.sum, rows)
            return
        here = rows.detach().cpu().contiguous()
        if self._shared is not None:
            self._shared.sum(here)
        else:
            self._add(here.view(-1).numpy())
        if here.data_ptr() != rows.data_ptr():
            rows.copy_(here)

    def sum_memory(self, numbers: memoryview) -> None:
        """The same for the bytes of numbers of f32, without an operator of torch, over the connections."""
        if self._sums is None or self._is_alone:
            return
        if self._devices is not None:
            self._sum_on(self._devices.sum_memory, numbers)
        else:
            self._add(np.frombuffer(numbers, np.float32))

    def _sum_on(self, total: Callable[[T, Callable[[], None]], None], numbers: T) -> None:
        """Sum on the devices.

        Before the first sum of a step all say over the connections that they do it: a step that one cannot do is given up
        there, and the devices go on with the next one.
        """
        assert self._sums is not None
        sums, step = self._sums, self._step
        if not self._summed:
            sums.gather(step, 0, memoryview(_NOTHING))
        self._summed += 1
        total(numbers, lambda: sums.look(step))

    def _add(self, mine: NDArray[np.float32]) -> None:
        assert self._sums is not None
        number, self._summed = self._summed, self._summed + 1
        gathered = self._sums.gather(self._step, number, mine.data.cast("B"))
        first, second, *others = (np.frombuffer(part, np.float32) for part in gathered)
        total = first + second  # in the order of the ranks
        for part in others:
            total += part
        mine[:] = total


def _passed_on(tokens: StepTokens, number: int, more: int) -> tuple[Forward, memoryview]:
    """A step as the other ranks get it: they choose no token."""
    header, data = to_payload(tokens.inputs)
    message = Forward(
        epoch=tokens.epoch,
        session=tokens.session,
        step=tokens.step,
        position=tokens.position,
        tensor=header,
        prompt_end=tokens.prompt_end,
        more=more,
        rank_step=number,
        ids=b"" if tokens.ids is None else bytes(tokens.ids.data),
        pictures=None
        if tokens.is_text and not tokens.lag
        else StepPictures(
            rows=tokens.pictures,
            lag=tokens.lag,
            places=b"" if tokens.places is None else bytes(tokens.places.data),
        ),
        drafts=tokens.drafts,
    )
    return message, data
