"""The messages of a conversation as a tree, and the path through it that is shown. Without Qt."""

from collections.abc import Iterable

from potluck_app.chats.values import Message


class Tree:
    """Messages by their parents. The path ends in a leaf; versions are the children of one parent."""

    def __init__(self, messages: Iterable[Message] = (), leaf: str | None = None) -> None:
        """Raises ValueError for two messages of one id, or a message before its parent."""
        self._messages: dict[str, Message] = {}
        self._children: dict[str | None, list[str]] = {}
        self._path: list[str] = []
        for message in messages:
            self._insert(message)
        newest = next(reversed(self._messages), None)
        self.show(leaf if leaf in self._messages else newest)

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages of all versions, each after its parent."""
        return tuple(self._messages.values())

    @property
    def leaf(self) -> str | None:
        return self._path[-1] if self._path else None

    def path(self) -> list[Message]:
        """Return the messages that are shown, the oldest first."""
        return [self._messages[message_id] for message_id in self._path]

    def __len__(self) -> int:
        """Return how many messages are shown."""
        return len(self._path)

    def at(self, row: int) -> Message:
        return self._messages[self._path[row]]

    def get(self, message_id: str) -> Message | None:
        return self._messages.get(message_id)

    def row_of(self, message_id: str) -> int | None:
        """Return the place of a message in the path, from its end, where most are asked for."""
        for row in range(len(self._path) - 1, -1, -1):
            if self._path[row] == message_id:
                return row
        return None

    def versions(self, message_id: str) -> tuple[int, int]:
        """Return which version of its message this is, from 0, and how many there are."""
        siblings = self._children[self._messages[message_id].parent]
        return siblings.index(message_id), len(siblings)

    def add(self, message: Message) -> int:
        """Add a message below its parent and show it.

        Returns:
            The first row of the path that is new.
        """
        self._insert(message)
        if message.parent == self.leaf:
            self._path.append(message.id)
            return len(self._path) - 1
        return self.show(message.id)

    def replace(self, message: Message) -> None:
        """Put a message in the place of the one with its id."""
        self._messages[message.id] = message

    def choose(self, message_id: str, step: int) -> int:
        """Show the next (1) or the previous (-1) version of a message. See `show`."""
        siblings = self._children[self._messages[message_id].parent]
        place = siblings.index(message_id) + step
        return self.show(siblings[min(max(place, 0), len(siblings) - 1)])

    def show(self, message_id: str | None) -> int:
        """Show the path through a message, to the newest of what came after it.

        Returns:
            The first row of the path that is another one now.
        """
        before = self._path
        self._path = self._through(message_id)
        for row, (old, new) in enumerate(zip(before, self._path, strict=False)):
            if old != new:
                return row
        return min(len(before), len(self._path))

    def _through(self, message_id: str | None) -> list[str]:
        path: list[str] = []
        above = message_id
        while above is not None:
            path.append(above)
            above = self._messages[above].parent
        path.reverse()
        while path and (children := self._children.get(path[-1])):
            path.append(children[-1])
        return path

    def _insert(self, message: Message) -> None:
        if message.id in self._messages:
            raise ValueError(f"two messages have the id {message.id}")
        if message.parent is not None and message.parent not in self._messages:
            raise ValueError(f"the message {message.id} comes before its parent")
        self._messages[message.id] = message
        self._children.setdefault(message.parent, []).append(message.id)
