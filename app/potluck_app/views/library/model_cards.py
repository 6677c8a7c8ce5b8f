"""The cards of the Models page: a model on this computer, a download, a model of the Hub."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QFrame, QLabel, QMenu, QSizePolicy, QWidget

from potluck.api.values.hub import DownloadAction
from potluck_app import resources
from potluck_app.theme import Theme
from potluck_app.viewmodels.library import Library
from potluck_app.viewmodels.model_rows import Badge, DownloadRow, HubRow, ModelRow, VariantRow
from potluck_app.views.widgets.boxes import hbox, vbox
from potluck_app.views.widgets.controls import (
    ElidedLabel,
    IconButton,
    LabelKind,
    Pill,
    TintedIcon,
    button,
    clear,
    discard,
    field,
    label,
    set_property,
)
from potluck_app.views.widgets.dialogs import Confirmation, confirm
from potluck_app.views.widgets.flow import Flow
from potluck_app.views.widgets.folding import Folding, Headed
from potluck_app.views.widgets.meter import Meter
from potluck_app.views.widgets.words import Described, Menu

_MARGINS = (16, 13, 16, 13)
_FACTS = 300  # pixels beside a state or a button; narrower facts stand in lines of their own

Row = TypeVar("Row")


class CardList(QWidget, Generic[Row]):
    """A column with one card for each row. A card stays while its row does, with what is typed in it.

    Args:
        key: tells rows apart.
        make: makes the card of a row; it has `show_row`.
    """

    def __init__(self, key: Callable[[Row], str], make: Callable[[Row], QWidget]) -> None:
        super().__init__()
        self._key, self._make = key, make
        self._cards: dict[str, QWidget] = {}
        self._column = vbox(parent=self, spacing=12)

    def show_rows(self, rows: Sequence[Row]) -> None:
        """Show these rows, in this order."""
        wanted = {self._key(row): row for row in rows}
        for key in [key for key in self._cards if key not in wanted]:
            discard(self._cards.pop(key))
        for place, (key, row) in enumerate(wanted.items()):
            if key not in self._cards:
                self._cards[key] = self._make(row)
            card = self._cards[key]
            if self._column.indexOf(card) != place:
                self._column.insertWidget(place, card)
            card.show_row(row)  # pyright: ignore[reportAttributeAccessIssue] - `make` promises it
        self.setVisible(bool(wanted))

    def cards(self) -> list[QWidget]:
        """The cards, in their order."""
        return list(self._cards.values())


class ModelCardView(Described, QFrame):
    """A model on this computer."""

    def __init__(
        self, theme: Theme, library: Library, row: ModelRow, on_delete: Callable[[ModelRow], object]
    ) -> None:
        super().__init__()
        self.setProperty("card", "true")
        self._theme, self._library, self._row = theme, library, row
        self._on_delete = on_delete
        self.name = ElidedLabel("", "section")
        self.pill, self.facts = Pill(), _line("meta")
        self.fit, self.note = _line("body"), _line("meta")
        self.use = button("Use", "model-use", lambda: library.use(self._row.path))
        self.more = IconButton(theme, "more", "", "model-more")
        self.more.clicked.connect(self._open_menu)
        icon = TintedIcon(theme, "models", 24, lambda: theme.tokens.accent)
        needs = self.name.needed_width
        head = Folding(self.name, self.use, needs, lead=icon, tail=self.more)
        vbox(
            head,
            Headed(self.pill, self.facts, lambda: theme.px(_FACTS)),
            self.fit,
            self.note,
            parent=self,
            margins=_MARGINS,
            spacing=7,
        )

    def show_row(self, row: ModelRow) -> None:
        self._row = row
        self.setAccessibleName(f"{row.name}, {row.badge[0]}".rstrip(", "))
        self.name.set_text(row.name)
        _show_badge(self.pill, row.badge)
        self.facts.setText(row.facts)
        _show(self.fit, row.problem or row.fit)
        _show(self.note, self._library.checks.get(row.path, ""))
        set_property(self.note, "kind", "error" if row.path in self._library.damaged else "meta")
        self.use.setVisible(not row.in_use)
        self.use.setEnabled(row.can_be_used)
        self.use.setAccessibleName(f"Use {row.name}")
        self.more.setAccessibleName(f"More about {row.name}")
        self.more.setToolTip("")

    def menu(self) -> QMenu:
        """Return the menu of this model."""
        menu = Menu(self)
        menu.setAccessibleName(self._row.name)
        menu.aboutToHide.connect(menu.deleteLater)
        color = self._theme.tokens.text2
        check = menu.addAction(resources.icon("check", color, 16), "Check its weights")
        check.triggered.connect(lambda: self._library.check(self._row.path))
        if self._row.can_be_deleted:
            delete = menu.addAction(resources.icon("trash", color, 16), "Delete from the disk…")
            delete.triggered.connect(lambda: self._on_delete(self._row))
        return menu

    def _open_menu(self) -> None:
        self.menu().popup(self.more.mapToGlobal(self.more.rect().bottomLeft()))


class DownloadCardView(Described, QFrame):
    """A model that is being downloaded."""

    def __init__(
        self,
        theme: Theme,
        library: Library,
        row: DownloadRow,
        on_cancel: Callable[[DownloadRow], object],
    ) -> None:
        super().__init__()
        self.setProperty("card", "true")
        self._library, self._row, self._on_cancel = library, row, on_cancel
        self.name = ElidedLabel("", "section")
        self.line = _line("meta")
        self.meter = Meter(theme, "Progress of the download")
        self.pause = button("Pause", "download-pause", lambda: self._change("pause"))
        self.resume = button("Resume", "download-resume", lambda: self._change("resume"))
        self.use = button("Use", "download-use", self._use, kind="primary")
        self.cancel = button("Cancel", "download-cancel", self._cancel)
        actions = QWidget()
        hbox(self.pause, self.resume, self.use, self.cancel, parent=actions, spacing=8)
        head = Folding(self.name, actions, self.name.needed_width)
        vbox(head, self.meter, self.line, parent=self, margins=_MARGINS, spacing=8)

    def show_row(self, row: DownloadRow) -> None:
        self._row = row
        self.setAccessibleName(f"{row.title}: {row.line}")
        self.name.set_text(row.title)
        self.line.setText(row.line)
        self.meter.show_fraction(row.fraction, row.tone)
        self.pause.setVisible(row.can_pause)
        self.resume.setVisible(row.can_resume)
        self.use.setVisible(row.path is not None)
        self.cancel.setText("Cancel" if row.path is None else "Close")
        for each in (self.pause, self.resume, self.use, self.cancel):
            each.setAccessibleName(f"{each.text()}: {row.title}")

    def _change(self, action: DownloadAction) -> None:
        self._library.change_download(self._row.id, action)

    def _cancel(self) -> None:
        if self._row.path is None and self._row.fraction > 0:
            self._on_cancel(self._row)  # what has arrived would be lost
        else:
            self._change("cancel")

    def _use(self) -> None:
        self._library.use(self._row.path)
        self._change("cancel")


def ask_to_cancel(parent: QWidget, library: Library, row: DownloadRow) -> Confirmation:
    """Cancel a download, if the person says so."""
    return confirm(
        parent,
        title=f"Cancel the download of {row.title}?",
        text="What has arrived is deleted. Pause keeps it, and the download can go on later.",
        action="Cancel the download",
        keep="Keep it",
        on_confirmed=lambda: library.change_download(row.id, "cancel"),
    )


class HubCardView(Described, QFrame):
    """A model of the Hub: what it is, how it fits, and its forms once they are asked for."""

    def __init__(self, theme: Theme, library: Library, row: HubRow) -> None:
        super().__init__()
        self.setProperty("card", "true")
        self._theme, self._library, self._row = theme, library, row
        self._shown: tuple[VariantRow, ...] = ()
        self.name = ElidedLabel("", "section")
        self.about, self.fit, self.note = _line("body2"), _line("body"), _line("error")
        self.pill, self.facts = Pill(), _line("meta")
        self.action = button("", "hub-action", self._act)
        self.more = IconButton(theme, "more", "", "hub-more")
        self.more.clicked.connect(self._open_menu)
        self.variants = vbox(spacing=10)
        self.lock = TokenForm(library, self.open_page)
        vbox(
            Folding(self.name, self.action, self.name.needed_width, tail=self.more),
            self.about,
            Headed(self.pill, self.facts, lambda: theme.px(_FACTS)),
            self.fit,
            self.note,
            self.lock,
            self.variants,
            parent=self,
            margins=_MARGINS,
            spacing=7,
        )

    def show_row(self, row: HubRow) -> None:
        self._row = row
        library = self._library
        self.setAccessibleName(f"{row.title}, {row.badge[0]}".rstrip(", "))
        self.name.set_text(row.title)
        _show(self.about, row.about)
        _show_badge(self.pill, row.badge)
        self.facts.setText(f"{row.facts} · asks to accept terms" if row.gated else row.facts)
        _show(self.fit, row.problem or row.fit)
        _show(self.note, library.notes.get(row.name, ""))
        is_locked = library.locked == row.name
        set_property(self.note, "kind", "body2" if is_locked else "error")
        self.lock.setVisible(is_locked)
        self.lock.show_note(library.lock_note, is_error=library.is_refused)
        self._show_action()
        set_property(self.action, "kind", "primary" if row.is_best_choice else "plain")
        self.more.setAccessibleName(f"More about {row.title}")
        self.more.setToolTip("")
        if row.variants != self._shown:
            self._shown = row.variants
            clear(self.variants)
            self.variants.setContentsMargins(0, 8 if row.variants else 0, 0, 0)
            for variant in row.variants:
                self.variants.addWidget(self._variant(variant))

    def _show_action(self) -> None:
        row, library = self._row, self._library
        if row.path is not None:
            text = "Use"
        elif library.is_downloading(row.name):
            text = "Downloading…"
        elif row.name in library.awaited:
            text = "Asking the Hub…"
        else:
            text = "Download" if row.can_download else "Choose a size"
        self.action.setText(text)
        self.action.setAccessibleName(f"{text}: {row.title}")
        is_busy = library.is_downloading(row.name) or row.name in library.awaited
        self.action.setEnabled(row.path is not None or (not is_busy and not row.problem))

    def _act(self) -> None:
        if self._row.path is not None:
            self._library.use(self._row.path)
        elif self._row.can_download:
            self._library.download(self._row.name, self._row.best)
        else:
            self._library.look(self._row.name)

    def menu(self) -> QMenu:
        """Return the menu of this model."""
        row, library, color = self._row, self._library, self._theme.tokens.text2
        menu = Menu(self)
        menu.setAccessibleName(row.title)
        menu.aboutToHide.connect(menu.deleteLater)
        icon = resources.icon("models", color, 16)
        if row.variants:
            menu.addAction(icon, "Hide the sizes").triggered.connect(lambda: library.fold(row.name))
        else:
            menu.addAction(icon, "Other sizes").triggered.connect(lambda: library.look(row.name))
        page = menu.addAction(
            resources.icon("globe", color, 16), "Licence and details in the browser"
        )
        page.triggered.connect(self.open_page)
        return menu

    def open_page(self) -> None:
        """Open the model's page at the Hub in the browser."""
        QDesktopServices.openUrl(QUrl(self._row.page))

    def _open_menu(self) -> None:
        self.menu().popup(self.more.mapToGlobal(self.more.rect().bottomLeft()))

    def _variant(self, variant: VariantRow) -> QWidget:
        best = " · best here" if variant.is_best else ""
        texts = QWidget()
        fit = _line("meta")
        _show(fit, variant.fit)
        vbox(label(variant.text + best, "strong", wrap=True), fit, parent=texts)
        if variant.path is not None:
            name, act = "Use", lambda: self._library.use(variant.path)
        else:
            name, act = "Download", lambda: self._library.download(self._row.name, variant.name)
        choose = button(name, f"variant-{variant.name}", act)
        choose.setAccessibleName(f"{name} {variant.name} of {self._row.title}")
        row = QWidget()
        row.setLayout(Folding(texts, choose, lambda: self._theme.px(_FACTS)))
        return row


class TokenForm(QWidget):
    """Asks for the token of the person's account at the Hub, for a model with terms to accept."""

    def __init__(self, library: Library, open_page: Callable[[], object]) -> None:
        super().__init__()
        self._library = library
        page = button("Open the model's page", "hub-token-page", open_page)
        self.text = field("field", "hub-token", "Token of your account at huggingface.co")
        self.text.setPlaceholderText("hf_…")
        self.text.setEchoMode(self.text.EchoMode.Password)
        self.text.returnPressed.connect(self._give)
        give = button("Save and download", "hub-token-save", self._give, kind="primary")
        self.note = _line("meta")
        how = _line("meta")
        how.setText("The token needs the right to read. Paste it here; it stays on this computer.")
        holder = QWidget()
        ways = Flow(holder)
        for way in (give, page):
            ways.addWidget(way)
        vbox(how, self.text, holder, self.note, parent=self, spacing=8)

    def show_note(self, text: str, *, is_error: bool) -> None:
        """Show what became of the token."""
        _show(self.note, text)
        set_property(self.note, "kind", "error" if is_error else "meta")

    def _give(self) -> None:
        if token := self.text.text().strip():
            self._library.give_token(token)
            self.text.clear()


def _line(kind: LabelKind) -> QLabel:
    """Make a line that wraps, and whose room follows its height."""
    result = label("", kind, wrap=True)
    result.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
    return result


def _show(line: QLabel, text: str) -> None:
    line.setText(text)
    line.setVisible(bool(text))


def _show_badge(pill: Pill, badge: Badge) -> None:
    pill.show_state(*badge)
    pill.setVisible(bool(badge[0]))
