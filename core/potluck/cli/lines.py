'''Read the messages of a person at a terminal.

A message is a line. It goes on in the next line after a backslash at its end, and from `"""` to the next
`"""`. Where the terminal can, prompt_toolkit edits it: with a history over all runs, completion, and pasted
text as one message.
'''

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from potluck.cli.printing import say
from potluck.errors import UsageError
from potluck.reasons import reason
from potluck.settings import make_private
from potluck.system.terminals import editor

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.key_binding import KeyBindings

PROMPT = "> "
MORE = "… "
BLOCK = '"""'


class Reader(Protocol):
    """Reads the messages of a conversation."""

    def read(self) -> str:
        """Return the next message.

        Raises:
            EOFError: the person has ended the conversation (Ctrl-D).
            KeyboardInterrupt: the person gave up the line (Ctrl-C).
        """
        ...


def is_finished(text: str) -> bool:
    """Return whether this is a whole message, and not one that goes on in the next line."""
    if text.lstrip().startswith(BLOCK):
        return BLOCK in text.lstrip()[len(BLOCK) :]
    return not text.endswith("\\")


def message_of(text: str) -> str:
    """Return what was meant: without the marks that let the message go on."""
    if text.lstrip().startswith(BLOCK):
        return text.lstrip()[len(BLOCK) :].rstrip().removesuffix(BLOCK).strip("\n")
    return text.replace("\\\n", "\n").strip()


def open_reader(
    history: Path | None, completions: Callable[[str], Mapping[str, str]], *, keep: bool
) -> Reader:
    """Return what reads best here.

    Args:
        history: the file with what was typed in all conversations.
        completions: returns the words that may follow a text, each with what it means.
        keep: whether the history outlives the conversation.
    """
    if not (_is_real_terminal(sys.stdin) and _is_real_terminal(sys.stdout)):
        return PlainReader()
    return EditingReader(history if keep else None, completions)


def _is_real_terminal(stream: object) -> bool:
    return stream in (sys.__stdin__, sys.__stdout__) and os.isatty(stream.fileno())  # type: ignore[union-attr]


class PlainReader:
    """Reads whole lines, and leaves their editing to the system."""

    def read(self) -> str:
        lines: list[str] = []
        while not lines or not is_finished("\n".join(lines)):
            say(MORE if lines else f"\n{PROMPT}", end="")
            line = sys.stdin.readline()
            if not line:
                raise EOFError
            lines.append(line.rstrip("\r\n"))
        return message_of("\n".join(lines))


class EditingReader:
    """Reads messages with prompt_toolkit."""

    def __init__(
        self, history: Path | None, completions: Callable[[str], Mapping[str, str]]
    ) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.shortcuts import CompleteStyle

        if history is not None:
            make_private(history.parent)
            os.close(os.open(history, os.O_CREAT | os.O_APPEND, 0o600))
        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(str(history)) if history is not None else InMemoryHistory(),
            completer=_completer(completions),
            complete_style=CompleteStyle.READLINE_LIKE,  # by Tab, as in a shell
            complete_while_typing=False,
            multiline=True,
            prompt_continuation=MORE,
            key_bindings=_keys(),
            enable_open_in_editor=True,  # Ctrl-X Ctrl-E
            tempfile_suffix=".md",
        )

    def read(self) -> str:
        say()
        return message_of(self._session.prompt(PROMPT))


def _keys() -> "KeyBindings":
    from prompt_toolkit.filters import has_focus
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()
    in_message = has_focus("DEFAULT_BUFFER")

    @keys.add("enter", filter=in_message)
    def enter(event: KeyPressEvent) -> None:
        """End the message, or its line if the message goes on."""
        buffer = event.current_buffer
        if is_finished(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.newline(copy_margin=False)

    @keys.add("escape", "enter", filter=in_message)
    def alt_enter(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


def _completer(completions: Callable[[str], Mapping[str, str]]) -> "Completer":
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

    class Words(Completer):
        def get_completions(
            self, document: Document, complete_event: CompleteEvent
        ) -> Iterable[Completion]:
            text = document.text_before_cursor
            begun = text.rpartition(" ")[2]
            for word, meaning in completions(text).items():
                yield Completion(word, start_position=-len(begun), display_meta=meaning)

    return Words()


def edited(text: str) -> str:
    """Let the person edit a text in the editor of $VISUAL or $EDITOR, and return it.

    Raises:
        UsageError: there is no editor, or it failed.
    """
    try:
        words = editor(os.environ)
    except ValueError:
        raise UsageError(
            "The variable VISUAL or EDITOR cannot be read: a quotation mark in it is not closed, or it ends with a"
            " backslash. Name the editor in it as in a terminal."
        ) from None
    descriptor, name = tempfile.mkstemp(suffix=".md")  # only its owner can read it
    file = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        try:
            subprocess.run([*words, name], check=True)  # noqa: S603 - the person's own editor
        except (OSError, subprocess.CalledProcessError) as error:
            why = reason(error) if isinstance(error, OSError) else f"status {error.returncode}"
            raise UsageError(
                f"The editor {' '.join(words)} failed ({why}). Name another one in the variable EDITOR."
            ) from None
        return file.read_text("utf-8", errors="replace").strip()
    finally:
        file.unlink(missing_ok=True)
