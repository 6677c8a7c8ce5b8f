"""The cards of the Cluster page: the model, a computer, a computer that could join."""

from collections.abc import Callable

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QMenu, QSizePolicy, QWidget

from potluck_app import resources
from potluck_app.language import said
from potluck_app.theme import Theme
from potluck_app.tokens import node_color
from potluck_app.viewmodels.cluster import Choice, ComputerCard
from potluck_app.viewmodels.joining import JoinCard
from potluck_app.viewmodels.model_card import ModelCard
from potluck_app.views.home.layer_bar import LayerBar
from potluck_app.views.widgets.boxes import STRETCH, hbox, vbox
from potluck_app.views.widgets.controls import (
    ElidedLabel,
    IconButton,
    Pill,
    TintedIcon,
    announce,
    button,
    label,
)
from potluck_app.views.widgets.disclosure import Disclosure
from potluck_app.views.widgets.folding import Folding, Headed
from potluck_app.views.widgets.meter import Meter
from potluck_app.views.widgets.paragraphs import Paragraphs
from potluck_app.views.widgets.words import Described, Menu

_WHY = 300  # pixels beside the question why; a narrower line stands above it
_FIGURES = 0.45  # of the width of the card; longer figures get a line of their own
_SIDE, _GAP = 16, 12  # pixels beside the parts of a card, and between two of them
_NOTE_MS = 8000  # time to read what an action found out


class ModelCardView(QFrame):
    """The model, its speed, and where its layers are."""

    def __init__(
        self,
        theme: Theme,
        *,
        on_unload: Callable[[], object],
        on_choose: Callable[[], object],
    ) -> None:
        super().__init__()
        self.setProperty("card", "true")
        self.setObjectName("model-card")
        self.name = ElidedLabel("", "section")
        self.pill = Pill()
        self.pill.setObjectName("model-pill")
        self.figures = label("", "body2")
        self._below = label("", "body2", wrap=True)  # the same, on a narrow page
        self._is_narrow = self._figured = False
        self.unload = button("Unload", "model-unload", on_unload)
        self.choose = button("Choose a model", "model-choose", on_choose)
        self.bar = LayerBar(theme)
        self.meter = Meter(theme, "Progress of the model")
        self.line = label("", "meta", wrap=True, name="model-line")
        self.why = Disclosure(theme, "Why so?", "Why it runs so", "model-why")
        self.why.clicked.connect(self._toggle_why)
        self._explanation = Paragraphs("meta", "model-explanation")
        self._explanation.hide()
        summary = Folding(self.line, self.why, lambda: theme.px(_WHY))
        self._head = hbox(
            (self.name, 100), self.pill, STRETCH, self.figures, self.choose, self.unload, spacing=12
        )
        self._left = QWidget()  # on a narrow page, for what stands beside the name on a wide one
        self._left.hide()
        self._second = hbox(parent=self._left)
        vbox(
            self._head,
            Headed(self._left, self._below, self._figures_width, below=6),
            self.bar,
            self.meter,
            summary,
            self._explanation,
            parent=self,
            margins=(_SIDE, 15, _SIDE, 15),
            spacing=10,
        )

    def show_card(self, card: ModelCard | None) -> None:
        """Show the model; without one, offer to choose one."""
        self.choose.setVisible(card is None)
        self.unload.setVisible(card is not None)
        self.pill.setVisible(card is not None)
        self._figured = card is not None and bool(card.figures)
        self._place_figures()
        if card is None:
            self._show_name("No model loaded")
            self.bar.show_segments(())
            self.meter.hide()
            self._show_why("")
            self.line.setText(
                "The first message loads the Potluck guide. Choose a bigger model to spread it over"
                " your computers."
            )
            self.line.show()
            return
        self._show_name(card.name)
        self.pill.show_state(card.pill, card.tone)
        self.figures.setText(card.figures)
        self._below.setText(card.figures)
        self.bar.show_segments(card.segments)
        self.bar.setToolTip("")
        self.meter.setVisible(card.progress is not None)
        self.meter.show_fraction(card.progress or 0.0)
        first, _, rest = card.explanation.partition("\n")
        self.line.setText(card.line or first)
        self.line.setVisible(bool(card.line or first))
        self._show_why(card.explanation if card.line else rest or card.explanation)

    def _show_name(self, name: str) -> None:
        self.name.set_text(name)
        self.name.ensurePolished()
        self.name.setMaximumWidth(self.name.fontMetrics().horizontalAdvance(said(name)) + 8)

    def set_narrow(self, is_narrow: bool) -> None:
        """Lay the card out for a narrow page, or for a wide one."""
        if is_narrow != self._is_narrow:
            self._is_narrow = is_narrow
            row, place = (self._second, 0) if is_narrow else (self._head, 1)
            row.insertWidget(place, self.pill)
            row, place = (self._second, 1) if is_narrow else (self._head, self._head.count() - 1)
            row.insertWidget(place, self.choose)
            self._left.setVisible(is_narrow)
        self._place_figures()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place_figures()

    def _figures_width(self) -> int:
        """How many pixels the figures take in one line."""
        return self.figures.sizeHint().width()

    def _place_figures(self) -> None:
        is_long = self._figures_width() > _FIGURES * self.width()
        is_below = self._is_narrow or is_long
        self.figures.setVisible(self._figured and not is_below)
        self._below.setVisible(self._figured and is_below)

    def _show_why(self, text: str) -> None:
        self._explanation.setText(text)
        self.why.setVisible(bool(text))
        if not text:
            self._explanation.hide()

    def _toggle_why(self) -> None:
        self._explanation.setVisible(self._explanation.isHidden())
        self.why.show_open(not self._explanation.isHidden())


class ComputerCardView(Described, QFrame):
    """One computer of the home."""

    def __init__(
        self, theme: Theme, card: ComputerCard, on_choice: Callable[[ComputerCard, Choice], object]
    ) -> None:
        super().__init__()
        self.setProperty("card", "true")
        self.setObjectName(f"computer-{card.node_id[:8]}")
        self._theme, self._card = theme, card
        self._on_choice = on_choice
        self._note = ""
        self._noted = QTimer(self, singleShot=True, interval=_NOTE_MS)
        self._noted.timeout.connect(lambda: self.show_note(""))
        self._icon = TintedIcon(theme, card.icon, 24, lambda: node_color(self._card.color))
        self.name = ElidedLabel("", "section")
        self._hardware = label("", "meta", wrap=True)
        self._hardware.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        self.pill = Pill()
        self._menu = IconButton(theme, "more", "", f"computer-menu-{card.node_id[:8]}")
        self._menu.clicked.connect(self._open_menu)
        self._meter = Meter(theme, "Memory lent")
        self._memory = label("", "meta")
        self._link = ElidedLabel("", "meta")
        self._link.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._holds = label("", "meta", wrap=True)
        self._detail = label("", "meta", wrap=True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self._arrange()
        self.show_card(card)

    def _arrange(self) -> None:
        names, needs = QWidget(), self.name.needed_width
        vbox(self.name, self._hardware, parent=names, spacing=1)
        head = Folding(names, self.pill, needs, lead=self._icon, tail=self._menu)
        self._foot = Headed(self._memory, self._link, self._link.needed_width, gap=_GAP)
        vbox(
            head,
            self._meter,
            self._foot,
            self._holds,
            self._detail,
            STRETCH,  # cards of one row are equally high
            parent=self,
            margins=(_SIDE, 13, _SIDE, 13),
            spacing=7,
        )

    def show_card(self, card: ComputerCard) -> None:
        self._card = card
        self.setAccessibleName(f"{card.name}, {card.pill}")
        self._icon.set_icon(card.icon, lambda: node_color(self._card.color))
        self.name.set_text(card.name)
        self._hardware.setText(card.hardware)
        self.pill.show_state(card.pill, card.tone)
        self._menu.setAccessibleName(f"More about {card.name}")
        if card.progress is not None:
            self._meter.setAccessibleName("Progress")
            self._meter.show_fraction(card.progress)
        else:
            self._meter.setAccessibleName("Memory lent")
            self._meter.show_fraction(card.used, limit=card.limit)
        self._memory.setText(card.receiving or card.memory)
        link = self._note or ("" if card.receiving else card.link)
        self._link.set_text(link)
        self._meter.setVisible(bool(card.memory) or card.progress is not None)
        self._memory.setVisible(not card.detail and bool(card.memory or card.receiving))
        self._link.setVisible(not card.detail and bool(link))
        self._holds.setText(card.holds)
        self._holds.setVisible(bool(card.holds) and not card.detail)
        self._detail.setText(card.detail)
        self._detail.setVisible(bool(card.detail))
        self._place_link()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place_link()

    def _place_link(self) -> None:
        """Let the link end where the card ends, or begin where the memory begins if it is below that."""
        is_below = self._foot.is_folded(self.width() - 2 * _SIDE)
        side = Qt.AlignmentFlag.AlignLeft if is_below else Qt.AlignmentFlag.AlignRight
        self._link.setAlignment(side | Qt.AlignmentFlag.AlignVCenter)

    def show_note(self, text: str) -> None:
        """Show a sentence in the place of the link, for a moment."""
        self._note = text
        self._noted.start()
        if text:
            announce(self, text)
        self.show_card(self._card)

    def menu(self) -> QMenu:
        """Return the menu of this computer."""
        menu = Menu(self)
        menu.setAccessibleName(self._card.name)
        menu.aboutToHide.connect(menu.deleteLater)
        card = self._card
        self._offer(menu, "edit", "Rename…", "rename")
        if card.paused:
            self._offer(menu, "play", "Resume", "resume")
        else:
            self._offer(menu, "pause", "Pause", "pause")
        self._offer(menu, "options", "Limit memory…", "limit")
        if card.online and not card.is_self:
            self._offer(menu, "refresh", "Test the link", "test")
            if card.removable:
                self._offer(menu, "cluster", "Make main computer…", "main")
        if card.removable:
            menu.addSeparator()
            self._offer(menu, "trash", "Remove from this home…", "remove")
        return menu

    def _offer(self, menu: QMenu, icon: str, text: str, choice: Choice) -> None:
        action = menu.addAction(resources.icon(icon, self._theme.tokens.text2, 16), text)
        action.setObjectName(f"computer-{choice}")
        action.triggered.connect(lambda: self._on_choice(self._card, choice))

    def _open_menu(self) -> None:
        self.menu().popup(self._menu.mapToGlobal(self._menu.rect().bottomLeft()))


class JoinCardView(Described, QFrame):
    """A computer that could join, with the digits that both screens show."""

    def __init__(
        self,
        theme: Theme,
        card: JoinCard,
        *,
        on_ask: Callable[[str], object],
        on_decide: Callable[[str, bool], object],
        on_ignore: Callable[[str], object],
    ) -> None:
        super().__init__()
        self.setProperty("card", "true")
        self.setObjectName(f"join-{card.node_id[:8]}")
        self._card = card
        self._on_ask, self._on_decide, self._on_ignore = on_ask, on_decide, on_ignore
        self._title = ElidedLabel("", "section")
        self._text = label("", "body2", wrap=True)
        self.code = label("", "section", name="join-code")
        self.code.setFont(theme.ui_font(18))
        self.ignore = button("Ignore", "join-ignore", self._ignore)
        self.add = button("Add", "join-add", self._add, kind="primary")
        texts = vbox(self._title, self._text, spacing=2)
        buttons = hbox(STRETCH, self.ignore, self.add, spacing=8)
        self._row = hbox(
            (texts, 1), self.code, buttons, parent=self, margins=(16, 12, 16, 12), spacing=12
        )
        self.show_card(card)

    def show_card(self, card: JoinCard) -> None:
        self._card = card
        self.setAccessibleName(f"{card.title}. {card.text} {card.code or ''}")
        self._title.set_text(card.title)
        self._text.setText(card.text)
        if card.code and card.code != self.code.text():
            announce(self, f"{card.title}. Code {card.code}")
        self.code.setText(card.code or "")
        self.code.setVisible(card.code is not None)
        can_ask = card.step in ("found", "refused", "failed")
        self.add.setText("Ask again" if card.step in ("refused", "failed") else "Add")
        self.add.setAccessibleName(f"{self.add.text()} {card.name}")
        self.add.setEnabled(can_ask or card.step == "confirm")
        self.ignore.setText("Cancel" if card.step == "waiting" else "Ignore")
        self.ignore.setAccessibleName(f"{self.ignore.text()} {card.name}")

    def set_narrow(self, is_narrow: bool) -> None:
        """Lay the card out for a narrow page, or for a wide one."""
        direction = QBoxLayout.Direction
        self._row.setDirection(direction.TopToBottom if is_narrow else direction.LeftToRight)

    def _add(self) -> None:
        if self._card.step == "confirm" and self._card.pairing_id is not None:
            self._on_decide(self._card.pairing_id, True)
        else:
            self._on_ask(self._card.node_id)

    def _ignore(self) -> None:
        if self._card.step in ("confirm", "waiting") and self._card.pairing_id is not None:
            self._on_decide(self._card.pairing_id, False)
        self._on_ignore(self._card.node_id)
