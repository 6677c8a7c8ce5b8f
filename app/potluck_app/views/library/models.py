"""The Models page: the models on this computer, what can be downloaded, and the downloads."""

from pathlib import Path

from PySide6.QtCore import QTimer
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFileDialog, QFrame, QLabel, QMenu, QPushButton, QWidget

from potluck.api.values.schema import ClusterState
from potluck_app import resources, wording
from potluck_app.language import said
from potluck_app.theme import Theme
from potluck_app.viewmodels.library import Library
from potluck_app.viewmodels.model_rows import DownloadRow, HubRow, ModelRow
from potluck_app.views.library.model_cards import (
    CardList,
    DownloadCardView,
    HubCardView,
    ModelCardView,
    ask_to_cancel,
)
from potluck_app.views.widgets.boxes import STRETCH, hbox, vbox
from potluck_app.views.widgets.controls import (
    ButtonIcon,
    button,
    card_frame,
    field,
    fill_page,
    label,
    make_page,
    page_head,
)
from potluck_app.views.widgets.dialogs import Confirmation, confirm
from potluck_app.views.widgets.files import FileDialog
from potluck_app.views.widgets.meter import Meter
from potluck_app.views.widgets.toast import Toast
from potluck_app.views.widgets.words import Menu

_WIDTH = 960  # pixels; longer lines are hard to read
_TYPING_MS = 500  # after the last key, the Hub is searched
_WORDS = 200  # characters, as many as the node takes


class ModelsView(QWidget):
    """The Models page."""

    def __init__(self, theme: Theme, library: Library) -> None:
        super().__init__()
        make_page(self, "models-page", "Models")
        self._theme, self._library = theme, library
        self._is_chosen = False  # whether the person has chosen a tab
        self.subtitle = label("", "body2", wrap=True)
        self._progress, self._line, self._meter = self._make_progress()
        self.downloads: CardList[DownloadRow] = CardList(
            lambda row: row.id,
            lambda row: DownloadCardView(
                theme, library, row, lambda row: ask_to_cancel(self, library, row)
            ),
        )
        self.here: CardList[ModelRow] = CardList(
            lambda row: row.path,
            lambda row: ModelCardView(theme, library, row, self.ask_to_delete),
        )
        self.hub: CardList[HubRow] = CardList(
            lambda row: row.name, lambda row: HubCardView(theme, library, row)
        )
        self._discover = self._make_discover()
        self.tab_here = self._make_tab("On this computer", "models-here")
        self.tab_hub = self._make_tab("Discover", "models-discover")
        self.toast = Toast("models-toast", lambda: None, lambda: None)
        self.toast.undo.setAccessibleName("Undo")

        self._arrange()
        self._searching = QTimer(self, singleShot=True, interval=_TYPING_MS)
        self._searching.timeout.connect(self._search)
        library.changed.connect(self._show)
        library.said.connect(self.toast.say)
        self.open_tab(self.tab_here, by_person=False)

    def _arrange(self) -> None:
        self.add = button("Add", "models-add", self._open_menu)
        ButtonIcon(self.add, self._theme, "plus", lambda: self._theme.tokens.text)
        self.add.setAccessibleName("Add models of this computer")
        head = page_head("Models", self.add)
        tabs = hbox(self.tab_here, self.tab_hub, STRETCH, spacing=8)
        fill_page(
            self,
            "Models",
            head,
            tabs,
            self._progress,
            self.downloads,
            self.subtitle,
            self.toast,
            self._discover,
            self.here,
            width=_WIDTH,
        )

    def _make_tab(self, text: str, name: str) -> QPushButton:
        tab = button(text, name, lambda: self.open_tab(tab), kind="choice")
        tab.setCheckable(True)
        tab.setAutoExclusive(True)
        return tab

    def _make_discover(self) -> QWidget:
        self.search = field("field", "models-search", "Search models on Hugging Face")
        self.search.setPlaceholderText("Search models on Hugging Face")
        self.search.setMaxLength(_WORDS)
        self.search.setClearButtonEnabled(True)
        self.search.textChanged.connect(lambda _: self._searching.start())
        self.search.returnPressed.connect(self._search)
        self.said = label("", "body2", wrap=True, name="models-said")
        self.group = label("", "strong")
        page = QWidget()
        vbox(self.search, self.said, self.group, self.hub, parent=page, spacing=12)
        return page

    def _make_progress(self) -> tuple[QFrame, QLabel, Meter]:
        frame = card_frame()
        frame.setObjectName("models-progress")
        line = label("", "body2", wrap=True, name="models-progress-line")
        meter = Meter(self._theme, "Progress of the model")
        vbox(line, meter, parent=frame, margins=(18, 14, 18, 16), spacing=8)
        frame.hide()
        return frame, line, meter

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._library.refresh()

    def show_state(self, state: ClusterState | None) -> None:
        """Show the progress of a load."""
        lists = (self.downloads, self._discover, self.here)
        for part in (self.tab_here, self.tab_hub, self.add, *lists):
            part.setEnabled(state is not None)  # not the page: the focus would go somewhere else
        line = wording.model_progress(state.model, state.transfers) if state else ""
        self._progress.setVisible(bool(line))
        if state is not None and line:
            self._line.setText(f"{wording.model_name(state.model.name)} · {line}")
            self._meter.setVisible(state.model.progress is not None)
            self._meter.show_fraction(state.model.progress or 0.0)

    def open_tab(self, tab: QPushButton, *, by_person: bool = True) -> None:
        """Show the models on this computer, or those of the Hub."""
        self._is_chosen |= by_person
        tab.setChecked(True)
        self._show()

    def _show(self) -> None:
        library = self._library
        models, hub = library.models, library.hub
        # Without a model of one's own, the first thing to do is to get one.
        if models is not None and not self._is_chosen and all(m.is_guide for m in models):
            self.tab_hub.setChecked(True)
        is_hub = self.tab_hub.isChecked()
        self._discover.setVisible(is_hub)
        self.downloads.show_rows(library.downloads)
        self.here.show_rows(models or ())
        self.here.setVisible(not is_hub)
        self.hub.show_rows(hub or ())
        self._show_subtitle(is_hub=is_hub)
        self.said.setText(self._hub_line())
        self.said.setVisible(bool(self.said.text()))
        self.group.setText(
            "Found on Hugging Face" if library.is_found else "Recommended for your computers"
        )
        self.group.setVisible(bool(hub))

    def _show_subtitle(self, *, is_hub: bool) -> None:
        models = self._library.models
        if is_hub:
            text = "Models to download, and how they fit on the computers that are here now."
        elif models is None:
            text = "Looking for models…"
        else:
            count = wording.plural(len(models), "model", "models")
            text = (
                f"{count} on this computer. Your other computers receive only the layers they run."
            )
        self.subtitle.setText(text)

    def _hub_line(self) -> str:
        library = self._library
        if library.is_searching:
            return "Searching…"
        if library.message:
            return library.message
        if library.is_measuring and not library.is_found:
            return "Measuring how fast your computers are…"
        return ""

    def _search(self) -> None:
        self._searching.stop()
        self._library.search(self.search.text())

    # --- models of this computer

    def menu(self) -> QMenu:
        """Return the menu of the Add button."""
        menu = Menu(self)
        menu.setAccessibleName("Add models of this computer")
        menu.aboutToHide.connect(menu.deleteLater)
        color = self._theme.tokens.text2
        folder = menu.addAction(resources.icon("folder", color, 16), "A folder with models…")
        folder.triggered.connect(self.choose_folder)
        file = menu.addAction(resources.icon("file", color, 16), "A GGUF file…")
        file.triggered.connect(self.choose_file)
        return menu

    def _open_menu(self) -> None:
        self.menu().popup(self.add.mapToGlobal(self.add.rect().bottomLeft()))

    def choose_folder(self) -> None:
        """Ask for a folder, and search it for models from then on."""
        dialog = FileDialog(self._theme, self, "Choose a folder with models")
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.setOption(QFileDialog.Option.ShowDirsOnly)
        dialog.fileSelected.connect(self._library.add_folder)
        self._open(dialog)

    def choose_file(self) -> None:
        """Ask for a file with a model, and use it."""
        dialog = FileDialog(self._theme, self, "Choose a GGUF file")
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.setNameFilter(said("GGUF models (*.gguf)"))
        dialog.fileSelected.connect(self._library.use)
        self._open(dialog)

    def _open(self, dialog: QFileDialog) -> None:
        dialog.setDirectory(str(Path.home()))
        dialog.open()

    def ask_to_delete(self, row: ModelRow) -> Confirmation:
        """Delete a model, if the person says so."""
        return confirm(
            self,
            title=f"Delete {row.name}?",
            text=f"{row.size} become free on this computer. You can download the model again.",
            action="Delete",
            on_confirmed=lambda: self._library.delete(row.path),
        )
