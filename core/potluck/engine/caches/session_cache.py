"""The cache of one session: the memory of each of its layers, and how many tokens are in it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.new_cache import new_cache
from potluck.model.caches import CacheSpec
from potluck.wire.activation_messages import PREFIX_BYTES, PREFIX_TOKENS

_CONTENTS = (
    "layers",
    "_own",
    "_kinds",
    "length",
    "capacity",
    "shared",
    "stretch",
    "prefix",
    "kept",
)


@dataclass(slots=True, eq=False)
class SharedRows:
    """Memory of the first tokens of some sessions, which is there once.

    It counts as theirs until they are evicted, even if they were trimmed to before it.
    """

    nbytes: int
    users: int = 1  # sessions that have it


class SessionCache:
    """One session's layers, some of which may have the same cache. `length` tokens are cached: that is the session's position here.

    `stretch` says which rotary frequencies the session has (`Stretches` of `model/mixing/rope.py`); an empty one may get others.
    `place` becomes another object whenever rows move. No other cache has the same one. `shared` are the rows
    that it has in common with other sessions, if there are any. `prefix` are the digests of its first tokens, as
    far as they were told: see `KeepSession`. `kept` are those under which it was last written to the disk. `changes`
    counts what was done to it: as long as it stays the same, rows can be copied one after the other.
    """

    __slots__ = (
        "_kinds",
        "_own",
        "capacity",
        "changes",
        "kept",
        "layers",
        "length",
        "place",
        "prefix",
        "shared",
        "stretch",
    )

    def __init__(
        self,
        specs: Sequence[CacheSpec],
        dtype: torch.dtype,
        device: torch.device,
        owners: Sequence[int] | None = None,
    ) -> None:
        """Make an empty cache with one layer for each specification; see `new_cache`.

        `owners` says which layer has the cache of each, as `cache_owners` does; None: each has its own.
        """
        owners = range(len(specs)) if owners is None else owners
        made = {owner: new_cache(specs[owner], dtype, device) for owner in sorted(set(owners))}
        self.layers = [made[owner] for owner in owners]
        self._own = tuple(made.values())  # each once
        self.length = self.capacity = 0  # tokens
        self.stretch = 0
        self.place = object()
        self.shared: SharedRows | None = None
        self.prefix = self.kept = b""
        self.changes = 0
        # Layers of one kind hold the same positions.
        self._kinds = [
            (kind, [layer for owner, layer in made.items() if specs[owner] == kind])
            for kind in dict.fromkeys(specs[owner] for owner in made)
        ]

    @property
    def parts(self) -> list[LayerCache]:
        """The memories of all layers, each once, in their order."""
        return [part for layer in self._own for part in layer.parts]

    @property
    def own_bytes(self) -> int:
        """Bytes of all layers, including those that grew before another one failed to."""
        return sum(layer.nbytes for layer in self._own)

    @property
    def nbytes(self) -> int:
        """The same, with the shared rows that it uses."""
        shared = (layer.shared for layer in self._own)
        return self.own_bytes + sum(one.nbytes for one in shared if one is not None)

    def resize(self, capacity: int) -> None:
        """Make room for so many tokens. If that fails, some layers are larger; no token is lost."""
        self.place = object()
        self.changes += 1
        for spec, layers in self._kinds:
            shared = 0 if layers[0].shared is None else layers[0].first
            rows = spec.rows(capacity) - shared
            for layer in layers:
                if layer.rows != rows:
                    layer.resize(rows, max(0, self.length - shared))
        self.capacity = capacity

    def begin_step(self, position: int, tokens: int) -> None:
        """Prepare the layers for a step of so many tokens: move rows, or make a checkpoint.

        The tokens must be within the capacity, and `position` must be where the cache ends. From now
        on they count as cached. If the step fails, `trim` to `position` makes that undone.
        """
        self.changes += 1
        for spec, layers in self._kinds:
            held = spec.advance(layers[0].held, position, tokens)
            if held != layers[0].held:
                self.place = object()
                for layer in layers:
                    layer.advance(held, position)
        self.length = position + tokens

    def extend(self, position: int) -> None:
        """Count the tokens before a position as cached: their rows are there, and its layers hold them.

        Layers of one kind may hold different positions, as they come of stages that were not equally far. Then all
        hold what the one does whose rows begin last.
        """
        self.changes += 1
        self.place = object()
        for _, layers in self._kinds:
            held = max(layer.held for layer in layers)
            for layer in layers:
                if layer.held != held:
                    layer.advance(held, position)
        self.length = position

    def trim(self, position: int) -> None:
        """Forget the tokens from `position` on, and more where a layer cannot go on from there.

        `length` is then the nearest position before it from which all layers can.
        """
        if position == self.length:
            return
        self.changes += 1
        position = self.restart(position)
        shared = max((layer.first for layer in self._own if layer.shared is not None), default=0)
        self.capacity -= max(
            0, shared - position
        )  # the shared rows after it are not there any more
        for layer in self._own:
            layer.trim(position)
        self.length = position
        self.name(self.prefix)
        if position < shared or not position:
            self.place = object()

    def name(self, prefix: bytes) -> None:
        """Note the digests of the first tokens, of no more than are cached."""
        self.prefix = prefix[: self.length // PREFIX_TOKENS * PREFIX_BYTES]

    def restart(self, position: int) -> int:
        """The nearest position, at or before `position`, where all layers can go on after a trim."""
        if position >= self.length:
            return self.length
        held = [(spec, layers[0].held) for spec, layers in self._kinds]
        while True:
            kept = min((spec.trim(one, position) for spec, one in held), default=position)
            if kept == position:
                return position
            position = kept

    def copy(self, other: "SessionCache", position: int) -> None:
        """Hold the tokens before `position` of a cache with the same layers.

        This one must be empty, with room for them; see also `take_shared`. The position must be one that
        `other.restart` returned.
        """
        for mine, theirs in zip(self._own, other._own, strict=True):
            mine.copy(theirs, position)
        self.length, self.prefix, self.kept = other.length, other.prefix, other.kept
        self.stretch = other.stretch
        self.trim(position)

    def share(self, position: int) -> None:
        """Move rows of tokens before `position` to memory that other sessions may share, if there is none."""
        if self.shared is not None or not any(spec.shared(position) for spec, _ in self._kinds):
            return
        self.place, nbytes = object(), 0
        self.changes += 1
        for spec, layers in self._kinds:
            if tokens := spec.shared(position):
                nbytes += sum(layer.share(tokens, self.length).nbytes for layer in layers)
        self.shared = SharedRows(nbytes)

    def take_shared(self, other: "SessionCache", position: int) -> None:
        """Have those shared rows of another cache that belong to tokens before `position`.

        This one must be empty.
        """
        if other.shared is None:
            return
        self.shared = other.shared
        self.shared.users += 1
        specs = {layer: spec for spec, layers in other._kinds for layer in layers}
        for mine, theirs in zip(self._own, other._own, strict=True):
            if theirs.shared is not None:
                mine.take_shared(theirs.shared[:, :, : specs[theirs].shared(position)])

    def swap(self, other: "SessionCache") -> None:
        """Hold what another cache with the same layers holds, which then holds what this one did."""
        for name in _CONTENTS:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, theirs)
            setattr(other, name, mine)
        self.place, other.place = object(), object()
        self.changes, other.changes = self.changes + 1, other.changes + 1

    def evict(self) -> None:
        """Give all memory back."""
        self.place, self.shared = object(), None
        self.changes += 1
        for layer in self._own:
            layer.clear()
        self.length = self.capacity = 0
        self.prefix = self.kept = b""
