"""The process that runs one model's tokenizer and chat template.

Both are programs of strangers: a regular expression that never ends, a template that fills the
memory. `serving` limits both.
"""

from pathlib import Path

from potluck.cluster.driver.model_text import Conversation, EncodedPrompt
from potluck.cluster.text.messages import (
    EncodeChat,
    Encoded,
    EncodeFill,
    EncodeText,
    FromText,
    ModelOpened,
    OpenModel,
    ToText,
    decode_to_text,
)
from potluck.cluster.text.serving import end_after, limit_memory, serve
from potluck.model.chat import ChatFormat
from potluck.model.fill import encode_fill


def encode_conversation(chat: ChatFormat, conversation: Conversation) -> EncodedPrompt:
    """A conversation as token ids.

    Raises:
        PromptError: the template refuses it.
        BrokenModelError: the tokenizer fails.
    """
    text = chat.render_chat(
        conversation.messages,
        tools=conversation.tools,
        variables=conversation.variables,
        continue_final=conversation.continue_final,
    )
    return EncodedPrompt(
        token_ids=chat.encode_rendered(text), is_reasoning=chat.begins_reasoning(text)
    )


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
        end_after(self._wanted.open_s)
        self._chat = ChatFormat.load(Path(self._wanted.folder))
        return ModelOpened(
            vocabulary=self._chat.vocabulary,
            stop_ids=self._chat.stop_ids,
            stop_strings=self._chat.stop_strings,
            answers=self._chat.answers,
        )

    def encode(self, request: EncodeText | EncodeFill | EncodeChat) -> Encoded:
        """The token ids of a text or a conversation.

        Raises:
            PromptError: the template refuses the conversation, or the model cannot fill in.
            BrokenModelError: the tokenizer fails.
        """
        assert self._chat is not None  # the node asks for nothing until the model is open
        end_after(self._wanted.encode_s)
        if isinstance(request, EncodeText):
            ids = self._chat.encode(request.text, add_special=request.add_special)
            return Encoded(prompt=EncodedPrompt(token_ids=ids))
        if isinstance(request, EncodeFill):
            ids = encode_fill(self._chat, request.before, request.after)
            return Encoded(prompt=EncodedPrompt(token_ids=ids))
        return Encoded(prompt=encode_conversation(self._chat, request.conversation))

    def answer(self, request: ToText) -> FromText:
        """The answer to a request."""
        return self.open() if isinstance(request, OpenModel) else self.encode(request)


def main() -> None:
    """Serve one node until it is gone."""
    server: TextServer | None = None

    def answer(frame: bytes) -> FromText:
        nonlocal server
        request = decode_to_text(frame)
        if isinstance(request, OpenModel):
            limit_memory(request.memory)
            server = TextServer(request)
        assert server is not None  # the first request opens the model
        return server.answer(request)

    serve(answer)


if __name__ == "__main__":
    main()
