"""What the menu of a computer does: rename, pause, limit, test the link, make it the main one, remove."""

from collections.abc import Callable

from PySide6.QtWidgets import QWidget

from potluck.api.values.schema import MAX_NAME, ComputerChange, HandedOver, LinkTest, MainRequest
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.http import Problem
from potluck_app.viewmodels.cluster import Choice, ComputerCard
from potluck_app.views.widgets.controls import button, field, label
from potluck_app.views.widgets.dialogs import Dialog, confirm


class Question(Dialog):
    """A title, a sentence, one field, and a button with the name of its action."""

    def __init__(
        self,
        parent: QWidget,
        *,
        title: str,
        text: str,
        value: str,
        action: str,
        read: Callable[[str], object | None],
    ) -> None:
        """`read` returns what the field means; None: it means nothing."""
        super().__init__(parent, "question", title)
        self._read = read
        self.value = field("field", "question-field", title)
        self.value.setText(value)
        self.value.selectAll()
        self.value.textChanged.connect(self._check)
        self.no = button("Cancel", "question-no", self.reject)
        self.yes = button(action, "question-yes", self.accept, kind="primary")
        self.yes.setDefault(True)
        self.fill(
            label(title, "section", wrap=True),
            label(text, "body2", wrap=True),
            self.value,
            buttons=(self.no, self.yes),
        )
        self._check()

    def answer(self) -> object | None:
        return self._read(self.value.text())

    def _check(self) -> None:
        self.yes.setEnabled(self.answer() is not None)


class ComputerActions:
    """Carries out what was chosen in the menu of a computer.

    Args:
        parent: of the questions.
        backend: of the window.
        note: shows a sentence for a moment on the card of a computer, given by its id.
    """

    def __init__(
        self, parent: QWidget, backend: Backend, note: Callable[[str, str], object]
    ) -> None:
        self._parent, self._backend, self._note = parent, backend, note

    def choose(self, card: ComputerCard, choice: Choice) -> None:
        """Do what was chosen, perhaps after a question."""
        match choice:
            case "rename":
                self._rename(card)
            case "pause" | "resume":
                self._change(card, ComputerChange(paused=choice == "pause"))
            case "limit":
                self._limit(card)
            case "test":
                self._test(card)
            case "main":
                self._make_main(card)
            case "remove":
                self._remove(card)

    def _change(self, card: ComputerCard, change: ComputerChange) -> None:
        self._backend.change_computer(card.node_id, change).then(failed=self._backend.report)

    def _rename(self, card: ComputerCard) -> None:
        whose = "Other computers see it" if card.is_self else "Only this home uses it"
        self._ask(
            title=f"Rename {card.name}",
            text=f"{whose}. Without a name it has its own one again.",
            value=card.name,
            action="Rename",
            read=lambda text: ComputerChange(name=text.strip()[:MAX_NAME]),
            card=card,
        )

    def _limit(self, card: ComputerCard) -> None:
        self._ask(
            title=f"Limit the memory of {card.name}",
            text="How many GB a model may have there at most. 0 is no limit.",
            value=wording.gigabytes(card.lends),
            action="Limit",
            read=_limited,
            card=card,
        )

    def _ask(
        self,
        *,
        title: str,
        text: str,
        value: str,
        action: str,
        read: Callable[[str], ComputerChange | None],
        card: ComputerCard,
    ) -> None:
        dialog = Question(
            self._parent, title=title, text=text, value=value, action=action, read=read
        )

        def accepted() -> None:
            if (change := read(dialog.value.text())) is not None:
                self._change(card, change)

        dialog.accepted.connect(accepted)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def _test(self, card: ComputerCard) -> None:
        self._note(card.node_id, "Testing the link…")

        def tested(link: LinkTest) -> None:
            measured = wording.link(link.bytes_per_s, link.rtt_ms)
            line = " · ".join(filter(None, (card.medium, measured)))
            self._note(card.node_id, f"{line}, just tested")

        def failed(problem: Problem) -> None:
            self._note(card.node_id, "")
            self._backend.report(problem)

        self._backend.test_link(card.node_id).then(tested, failed)

    def _make_main(self, card: ComputerCard) -> None:
        state = self._backend.live_state
        is_asked = state is not None and bool(state.model.answering or state.model.waiting)
        stopped = "The answer that is under way is stopped." if is_asked else ""
        does = (
            f"{card.name} answers from then on. This computer and the others help it. Your chats and"
            " models stay on this computer, and what is loaded is freed."
        )
        undo = f"To undo it, make this computer the main one on {card.name}."
        confirm(
            self._parent,
            title=f"Make {card.name} the main computer?",
            text=" ".join(filter(None, (does, stopped, undo))),
            action="Make main",
            kind="primary",
            on_confirmed=lambda: self._hand_over(card, stop_answers=is_asked),
        )

    def _hand_over(self, card: ComputerCard, *, stop_answers: bool) -> None:
        """Have it take over. The window changes by itself when this computer helps."""
        self._note(card.node_id, "Handing over…")

        def failed(problem: Problem) -> None:
            self._note(card.node_id, "")
            self._backend.report(problem)

        path = f"/cluster/computers/{card.node_id}/main"
        body = MainRequest(stop_answers=stop_answers)
        self._backend.call("POST", path, body, HandedOver).then(failed=failed)

    def _remove(self, card: ComputerCard) -> None:
        confirm(
            self._parent,
            title=f"Remove {card.name}?",
            text=f"{card.name} stops helping at once and must be added again to come back.",
            action="Remove",
            on_confirmed=lambda: self._backend.remove_computer(card.node_id).then(
                failed=self._backend.report
            ),
        )


def _limited(text: str) -> ComputerChange | None:
    try:
        value = float(text.strip().removesuffix("GB").removesuffix("Go").replace(",", "."))
    except ValueError:
        return None
    is_possible = 0 <= value < 1e6
    return ComputerChange(memory=round(value * 1e9)) if is_possible else None
