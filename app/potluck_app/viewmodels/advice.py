"""What to do when a conversation fills the context: a longer one, a summary, or a new chat."""

import msgspec
from PySide6.QtCore import QObject, Signal

from potluck.api.values.schema import PlanView
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.chats.values import Draft, Message
from potluck_app.http import Problem
from potluck_app.streams import Reply, ReplyEnd
from potluck_app.viewmodels.chat import Chat
from potluck_app.viewmodels.prompt import fitting, tokens_needed, tokens_used

WARN, FULL = 0.8, 0.95  # shares of the context

_TOO_LONG = "context_length_exceeded"  # code of the node's error
_LONGEST = 1 << 20  # tokens that the node takes
_ASK_FOR_SUMMARY = (
    "Summarise our conversation so far in at most 300 words, so that somebody who has not read it "
    "can go on with it. Keep names, numbers, decisions and open questions."
)
_SUMMARY = "Summary of the conversation before this one:"


class Advice(QObject):
    """The line above the composer, and what its buttons do.

    Signals:
        changed: `text`, `actions` or the usage of the context are others.
    """

    changed = Signal()

    def __init__(self, backend: Backend, chat: Chat, parent: QObject) -> None:
        super().__init__(parent)
        self._backend, self._chat = backend, chat
        self.text = ""  # nothing: there is nothing to say
        self.actions: tuple[tuple[str, str], ...] = ()  # the name of each, and its text
        self._dismissed: str | None = None  # id of the last message when the line was closed
        self._asked_context = 0
        self._summary: Reply | None = None
        self._summary_text = ""
        self._is_stepping = False  # the line shows what became of an action
        self._used_before: int | None = None  # tokens of all messages but the last, once counted
        model = chat.messages
        for changed in (model.modelReset, model.rowsInserted, model.rowsRemoved):
            changed.connect(self._forget_used)
        model.rowsInserted.connect(self._on_messages)
        model.dataChanged.connect(self.refresh)
        chat.shown_changed.connect(self._start_again)
        backend.state_changed.connect(self.refresh)

    @property
    def used(self) -> int:
        """Tokens of the shown conversation."""
        messages = self._chat.messages
        last = messages.last()
        if last is None or last.stats is not None:
            return tokens_used([last] if last is not None else [])
        if self._used_before is None:
            self._used_before = tokens_used(messages.messages[:-1])
        return tokens_used([last]) + self._used_before

    def _forget_used(self) -> None:
        self._used_before = None

    def act(self, name: str) -> None:
        """Do what a button says."""
        match name:
            case "longer":
                self._ask_for_longer()
            case "load":
                self._backend.load_context(self._asked_context).failed.connect(self._on_problem)
                self._say("The model is loaded again. Its progress is on the Cluster page.")
            case "summary":
                self._summarise()
            case "new":
                self._begin_anew("")
            case "stop":
                if self._summary is not None:
                    self._summary.stop()
            case _:
                last = self._chat.messages.last()
                self._dismissed = last.id if last else None
                self._is_stepping = False
                self.refresh()

    def refresh(self, *_given: object) -> None:
        """Look again whether there is something to say."""
        if not self._is_stepping:
            self._show(*self._due())
        self.changed.emit()

    def _due(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        last, context = self._chat.messages.last(), self._chat.context()
        if last is None or last.id == self._dismissed or last.status == "streaming":
            return "", ()
        ways = (("longer", "Longer context"), ("summary", "Summarise"), ("new", "New chat"))
        if last.code == _TOO_LONG:
            return "What would you like to do?", ways  # the reply above says what is wrong
        if context and self.used >= FULL * context:
            return "The context is nearly full: the oldest messages will be left out.", ways
        return "", ()

    # --- a longer context

    def _ask_for_longer(self) -> None:
        state = self._backend.state
        loaded = state.model.context if state else 0
        needed = tokens_needed(self._chat.messages.messages)
        self._asked_context = min(_power_of_two(max(2 * loaded, needed, 2048)), _LONGEST)
        size = wording.thousands(self._asked_context)
        self._say(f"Potluck looks whether a context of {size} tokens fits…")
        self._backend.plan_context(self._asked_context).then(self._on_plan, self._on_problem)

    def _on_plan(self, plan: PlanView) -> None:
        size = wording.thousands(plan.context)
        loaded = self._backend.state.model.context if self._backend.state else 0
        if plan.context <= loaded:
            self._say(f"This model takes a context of at most {size} tokens.", *_OTHERS)
            return
        self._asked_context = plan.context  # the model may take less than was asked for
        speed = wording.tokens_per_s(plan.predicted_tokens_per_s)
        where = wording.plural(len({s.node_id for s in plan.stages}), "computer", "computers")
        self._say(
            f"A context of {size} tokens takes {self._memory(plan)}. It fits on {where}: about"
            f" {speed}. The model is loaded again for it.",
            ("load", "Load it"),
            ("close", "Cancel"),
        )

    def _memory(self, plan: PlanView) -> str:
        """Return what a plan takes: more than the one in force, or with other weights, in all."""
        state = self._backend.state
        loaded = state.model.plan if state else None
        more = _memory_of(plan) - (_memory_of(loaded) if loaded else 0)
        if loaded is not None and loaded.scheme == plan.scheme and more > 0:
            return f"{wording.size(more)} more memory"
        weights = wording.precision(plan.scheme)
        return f"{wording.size(_memory_of(plan))} of memory, with weights in {weights}"

    def _on_problem(self, problem: Problem) -> None:
        self._say(problem.message, *_OTHERS)

    # --- a summary

    def _summarise(self) -> None:
        path = list(self._chat.messages.messages)
        while path and (path[-1].role == "user" or path[-1].code == _TOO_LONG):
            path.pop()  # what could not be answered goes into the new chat as its draft
        if not path:
            self._say("There is nothing before this message to summarise.", *_OTHERS[1:])
            return
        self._chat.stop()
        settings = msgspec.structs.replace(self._chat.settings, max_tokens=None)
        ask = Message(role="user", text=_ASK_FOR_SUMMARY)
        self._summary_text = ""
        self._summary = self._backend.chat(
            fitting([*path, ask], self._chat.context(), settings.system), settings
        )
        self._summary.text.connect(self._on_summary_text)
        self._summary.finished.connect(self._on_summary)
        self._say("The model writes a summary…", ("stop", "Stop"))

    def _on_summary_text(self, text: str) -> None:
        self._summary_text += text

    def _on_summary(self, end: ReplyEnd) -> None:
        self._summary = None
        if end.error:
            self._say(end.error, *_OTHERS)
        elif end.stopped or not self._summary_text.strip():
            self._is_stepping = False
            self.refresh()
        else:
            self._begin_anew(self._summary_text.strip())

    def _begin_anew(self, summary: str) -> None:
        """Show a new chat with the same settings, the summary, and the question without answer."""
        settings, last = self._chat.settings, self._chat.messages.last()
        draft = Draft()
        if last is not None and last.code == _TOO_LONG:
            asked = self._chat.messages.at(self._chat.messages.rowCount() - 2)
            draft = Draft(text=asked.text, attachments=asked.attachments)
        self._chat.new()
        if summary:
            system = "\n\n".join(part for part in (settings.system, _SUMMARY, summary) if part)
            settings = msgspec.structs.replace(settings, system=system)
        self._chat.set_settings(settings)
        self._chat.set_draft(draft)
        self._chat.shown_changed.emit()

    # --- the line

    def _on_messages(self) -> None:
        if self._summary is None:
            self._is_stepping = False
        self.refresh()

    def _start_again(self) -> None:
        self._dismissed, self._is_stepping = None, False
        summary, self._summary = self._summary, None
        if summary is not None:
            summary.finished.disconnect(self._on_summary)
            summary.stop()
        self.refresh()

    def _say(self, text: str, *actions: tuple[str, str]) -> None:
        self._is_stepping = True
        self._show(text, actions)
        self.changed.emit()

    def _show(self, text: str, actions: tuple[tuple[str, str], ...]) -> None:
        self.text, self.actions = text, actions


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def _memory_of(plan: PlanView) -> int:
    return sum(stage.memory for stage in plan.stages)


_OTHERS = (("summary", "Summarise"), ("new", "New chat"))
