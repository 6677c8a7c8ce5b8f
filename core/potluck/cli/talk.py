"""A conversation on the terminal: what was said, and the commands that begin with a slash."""

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from potluck.api.v1.request_shapes import ChatMessage
from potluck.cli import terminal
from potluck.cli.answering import Answering
from potluck.cli.lines import Reader, edited, open_reader
from potluck.cli.plan import plan_request
from potluck.cli.printing import put, say, say_dim
from potluck.cli.speaking import say_figures, showing, speak
from potluck.cli.terminal import Terminated
from potluck.errors import PotluckError, UsageError
from potluck.files import write_atomically
from potluck.reasons import reason
from potluck.settings import Folders, load_settings

GREETING = "Ask away. Ctrl-C stops an answer, Ctrl-D ends; /help says more."
HELP = {
    "/help": "this list",
    "/new": "begin a new conversation; the system prompt stays",
    "/retry": "answer the last message again",
    "/edit": "write a message in your editor (EDITOR); text after it is the draft",
    "/model": "the models that are here; with a name, go on with that one",
    "/system": "show the system prompt; with a text, set it; with -, remove it",
    "/save": "FILE: save the conversation as JSON",
    "/load": "FILE: go on with a conversation that was saved",
    "/quit": "end, as Ctrl-D does",
}
KEYS = """\
A backslash at the end of a line, or Alt-Enter, lets a message go on in the next line; so does a block from
\"\"\" to \"\"\". Pasted lines are one message. The arrow keys find what was typed before, Ctrl-R searches it."""
_COMMAND = re.compile(r"(/[a-z]+)(?:\s+(.*))?", re.DOTALL)


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation in a file: the messages as OpenAI's API has them."""

    messages: list[ChatMessage]


class Talk:
    """One conversation, until the person ends it."""

    def __init__(
        self, answering: Answering, options: argparse.Namespace, reader: Reader | None = None
    ) -> None:
        """Begin.

        Args:
            answering: asks the node.
            options: of the command; `/model` changes its model.
            reader: reads what the person says (the terminal's).
        """
        self._answering = answering
        self._options = options
        folders = Folders.of(options.home)
        self._reader = reader or open_reader(
            folders.state / "chat_history",
            self.completions,
            keep=load_settings(folders.settings_file).keep_conversations,
        )
        self._messages: list[ChatMessage] = []
        self._models: list[str] = []  # for completion
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": self._help,
            "/new": self._new,
            "/retry": self._retry,
            "/edit": self._edit,
            "/model": self._model,
            "/system": self._system,
            "/save": self._save,
            "/load": self._load,
        }

    def run(self) -> int:
        """Answer until the person ends it; return the exit status."""
        say_dim(GREETING)
        while True:
            try:
                line = self._reader.read()
            except EOFError:
                return 0
            except Terminated:
                raise
            except KeyboardInterrupt:
                say("Ctrl-D, or /quit, ends.")
                continue
            if line in ("/quit", "/exit"):
                return 0
            try:
                self._take(line)
            except Terminated:
                raise
            except KeyboardInterrupt:
                say("\nStopped.")
            except PotluckError as error:
                say(error.message)

    def completions(self, text: str) -> Mapping[str, str]:
        """Return the words that may follow this text, with what each means."""
        command, space, begun = text.partition(" ")
        if not space:
            return {word: HELP[word] for word in HELP if text and word.startswith(text)}
        if command != "/model":
            return {}
        if not self._models:
            self._models = [model.name for model in self._answering.client.models()]
        return {name: "" for name in self._models if name.startswith(begun)}

    def _take(self, line: str) -> None:
        """Answer a message, or do what a command says.

        A path or a comment at the beginning of a message is no command.
        """
        command = _COMMAND.fullmatch(line)
        if command is None:
            if line:
                self._answer(ChatMessage(role="user", content=line))
        elif run := self._commands.get(command[1]):
            run((command[2] or "").strip())
        else:
            raise UsageError(f"There is no command {command[1]}. /help lists those that there are.")

    def _answer(self, message: ChatMessage) -> None:
        """Answer a message. What was said before Ctrl-C stays; after an error, nothing of both does."""
        said: list[str] = []
        messages = [*self._messages, message]
        try:
            with showing() as show:

                def hear(text: str) -> None:
                    said.append(text)
                    show(text)

                spoken = speak(self._answering, self._options, messages, hear)
            say_figures(spoken)
        except PotluckError as error:
            say(error.message)
            # Do not wait for workers: those of the first request may be gone.
            terminal.load(self._answering.client, replace(plan_request(self._options), workers=0))
            return
        except KeyboardInterrupt:
            if said:
                self._keep(messages, "".join(said))
            raise
        self._keep(messages, spoken.text)

    def _keep(self, messages: list[ChatMessage], answer: str) -> None:
        self._messages = [*messages, ChatMessage(role="assistant", content=answer)]

    # --- commands

    def _help(self, _: str) -> None:
        for command, meaning in HELP.items():
            put(f"  {command:<9}{meaning}")
        put(KEYS)

    def _new(self, _: str) -> None:
        self._messages = [each for each in self._messages if each.role == "system"]
        say("A new conversation.")

    def _retry(self, _: str) -> None:
        asked = [at for at, each in enumerate(self._messages) if each.role == "user"]
        if not asked:
            raise UsageError("There is no message to answer again.")
        before = self._messages
        self._messages = before[: asked[-1]]
        try:
            self._answer(before[asked[-1]])
        finally:
            if len(self._messages) == asked[-1]:  # there is no answer in its place
                self._messages = before

    def _edit(self, draft: str) -> None:
        text = edited(draft)
        if not text:
            say("The message is empty; nothing is asked.")
            return
        put(text)
        self._answer(ChatMessage(role="user", content=text))

    def _model(self, name: str) -> None:
        if not name:
            for model in self._answering.client.models():
                put(f"  {model.name}{' (loaded)' if model.current else ''}")
            return
        before = self._options.model
        self._options.model = name
        try:
            terminal.load(self._answering.client, plan_request(self._options))
        except BaseException:
            self._options.model = before
            raise
        say(f"Going on with {name}.")

    def _system(self, text: str) -> None:
        now = next((each.content for each in self._messages if each.role == "system"), None)
        if not text:
            put(str(now) if now else "There is no system prompt.")
            return
        rest = [each for each in self._messages if each.role != "system"]
        prompt = [] if text == "-" else [ChatMessage(role="system", content=text)]
        self._messages = [*prompt, *rest]

    def _save(self, name: str) -> None:
        file = _path(name, "/save")
        if file.exists() and not terminal.ask(f"{file} exists. Replace it?"):
            return
        saved = msgspec.json.format(msgspec.json.encode(Saved(messages=self._messages)), indent=2)
        try:
            write_atomically(file, saved + b"\n")
        except OSError as error:
            raise UsageError(f"{file} cannot be written: {reason(error)}.") from None
        say(f"Saved in {file}.")

    def _load(self, name: str) -> None:
        file = _path(name, "/load")
        try:
            self._messages = msgspec.json.decode(file.read_bytes(), type=Saved).messages
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {reason(error)}.") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise UsageError(f"{file} is no conversation that /save has written.") from None
        say(f"{len(self._messages)} messages. The conversation goes on.")


def _path(name: str, command: str) -> Path:
    if not name:
        raise UsageError(f"Say which file: {command} FILE")
    return Path(name).expanduser()
