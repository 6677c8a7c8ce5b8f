"""The process that runs one model's tokenizer and chat template.

Both are programs of strangers: a regular expression that never ends, a template that fills the
memory. `serving` limits both.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

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
from potluck.cluster.text.serving import serve
from potluck.errors import InvalidConfigError, PromptError
from potluck.model.config import ModelConfig
from potluck.model.text.chat import ChatFormat, ChatMessage
from potluck.model.text.fill import encode_fill
from potluck.model.text.tokenizer_folder import read_json
from potluck.model.vision.pictures import PictureFormat, picture_format
from potluck.system.limits import end_after, limit_memory

_PICTURE = {"type": "image"}


def encode_conversation(
    chat: ChatFormat, conversation: Conversation, form: PictureFormat | None = None
) -> EncodedPrompt:
    """A conversation as token ids; `form` is how the model takes pictures.

    Raises:
        PromptError: the template refuses it, or a picture cannot be read.
        BrokenModelError: the tokenizer fails.
    """
    messages = conversation.messages
    if form is not None and conversation.pictures:
        messages = _for_template(chat, messages, form.facts.mark)
    text = chat.render_chat(
        messages,
        tools=conversation.tools,
        variables=conversation.variables,
        continue_final=conversation.continue_final,
    )
    is_reasoning = chat.begins_reasoning(text)
    if not conversation.pictures:
        return EncodedPrompt(token_ids=chat.encode_rendered(text), is_reasoning=is_reasoning)
    if form is None:
        raise PromptError(
            "This model reads only text, and a message has a picture. Leave it out, or ask a model that sees."
        )
    # Imported only where pictures are looked at.
    from potluck.cluster.text.pictures import prepare_pictures

    prepared = prepare_pictures(conversation.pictures, form)
    ids, token = chat.encode_with_pictures(text, form, [each.layout for each in prepared])
    return EncodedPrompt(
        token_ids=ids,
        is_reasoning=is_reasoning,
        pictures=tuple(each.picture for each in prepared),
        picture_token=token,
    )


def _for_template(
    chat: ChatFormat, messages: Sequence[ChatMessage], mark: str
) -> Sequence[ChatMessage]:
    """Messages with their pictures as the template can read them.

    All templates that know pictures have them in the user's messages. In results of tools they become text, as the template
    writes it for a picture; and everywhere for a template that knows none, as many GGUF files of InternVL have it.
    """
    if not chat.places(mark):
        return [_marked(message, mark) for message in messages]
    results = [message for message in messages if message.get("role") == "tool"]
    if not any(map(_parts, results)):
        return messages
    written = chat.picture_text(mark)
    return [
        _marked(message, written) if message.get("role") == "tool" else message
        for message in messages
    ]


def _marked(message: ChatMessage, written: str) -> ChatMessage:
    """A message with this text in the place of each picture."""
    if not (parts := _parts(message)):
        return message
    texts = [written if part == _PICTURE else str(part.get("text", "")) for part in parts]
    if message.get("role") == "tool":  # many templates take no parts there
        return {**message, "content": "".join(texts)}
    return {**message, "content": [{"type": "text", "text": text} for text in texts]}


def _parts(message: ChatMessage) -> Sequence[Mapping[str, object]]:
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return ()
    return cast("Sequence[Mapping[str, object]]", content)


def read_pictures(folder: Path) -> PictureFormat | None:
    """How the model in this folder takes pictures; None: it takes none, or it is not known how.

    Raises:
        BrokenModelError: a file is damaged.
    """
    config = read_json(folder, "config.json")
    given = read_json(folder, "preprocessor_config.json")
    if not given:  # as later versions of `transformers` write it
        found = read_json(folder, "processor_config.json").get("image_processor")
        if isinstance(found, Mapping):
            given = cast("Mapping[str, object]", found)
    try:
        return picture_format(ModelConfig.from_dict(config).tower, given)
    except InvalidConfigError:
        return None


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
        conversation = request.conversation
        form = read_pictures(Path(self._wanted.folder)) if conversation.pictures else None
        return Encoded(prompt=encode_conversation(self._chat, conversation, form))

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
