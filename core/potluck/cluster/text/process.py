"""The process that runs one model's tokenizer and chat template.

Both are programs of strangers: a regular expression that never ends, a template that fills the
memory. The process limits its own memory and time where the system can do that, and its node ends
it where the system cannot. It ends when its node is gone.
"""

import signal
import sys
from contextlib import suppress
from pathlib import Path

from potluck.cluster.processes.messages import claim_stdout, encode, read_frame
from potluck.cluster.text.messages import (
    EncodeChat,
    Encoded,
    EncodeText,
    Failed,
    FromText,
    ModelOpened,
    OpenModel,
    decode_to_text,
)
from potluck.errors import PotluckError
from potluck.model.chat import ChatFormat

try:
    import resource
except ImportError:  # Windows
    resource = None

_GRACE_S = 5.0  # the node ends the process before this process does


class TextServer:
    """Answers the requests of one node."""

    def __init__(self, wanted: OpenModel) -> None:
        self._wanted = wanted
        self._chat: ChatFormat | None = None

    def open(self) -> ModelOpened:
        """Read the model's files.

        Raises:
            BrokenModelError: a file is missing or unreadable.
        """
        _end_after(self._wanted.open_s)
        self._chat = ChatFormat.load(Path(self._wanted.folder))
        return ModelOpened(
            vocabulary=self._chat.vocabulary,
            stop_ids=self._chat.stop_ids,
            stop_strings=self._chat.stop_strings,
        )

    def encode(self, request: EncodeText | EncodeChat) -> Encoded:
        """The token ids of a text or a conversation.

        Raises:
            PromptError: the template refuses the conversation.
            BrokenModelError: the tokenizer fails.
        """
        assert self._chat is not None  # the node asks for nothing until the model is open
        _end_after(self._wanted.encode_s)
        if isinstance(request, EncodeText):
            return Encoded(token_ids=self._chat.encode(request.text))
        return Encoded(token_ids=self._chat.encode_chat(request.messages))

    def answer(self, request: OpenModel | EncodeText | EncodeChat) -> FromText:
        """The answer to a request, also to one that fails."""
        try:
            return self.open() if isinstance(request, OpenModel) else self.encode(request)
        except PotluckError as error:
            return Failed(kind=error.code, message=error.message, data=dict(error.data))
        finally:
            _end_after(None)


def _limit_memory(nbytes: int) -> None:
    """Have the system refuse this process more memory, where it can."""
    if resource is not None:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (nbytes, nbytes))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash leaves no file of that size


def _end_after(seconds: float | None) -> None:
    """Have the system end this process when the time is over, where it can; None: never.

    No code of this process is needed for that. It may be deep in a library, and its node gone.
    """
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, 0.0 if seconds is None else seconds + _GRACE_S)


def main() -> None:
    """Serve one node until it is gone."""
    pipe = claim_stdout()
    server: TextServer | None = None
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        request = decode_to_text(frame)
        if isinstance(request, OpenModel):
            _limit_memory(request.memory)
            server = TextServer(request)
        assert server is not None  # the first request opens the model
        pipe.write(encode(server.answer(request)))
        pipe.flush()


if __name__ == "__main__":
    main()
