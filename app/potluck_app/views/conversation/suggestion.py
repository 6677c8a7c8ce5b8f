"""Below an empty chat, while the guide is the only model: the one that suits the computers best, to download."""

from PySide6.QtWidgets import QWidget

from potluck_app.theme import Theme
from potluck_app.viewmodels.library import Library
from potluck_app.viewmodels.model_rows import DownloadRow, HubRow
from potluck_app.views.library.model_cards import (
    CardList,
    DownloadCardView,
    HubCardView,
    ask_to_cancel,
)
from potluck_app.views.widgets.boxes import vbox
from potluck_app.views.widgets.controls import label


class Suggestion(QWidget):
    """The card of that model, and of its download once that has begun. Hidden if there is nothing to suggest."""

    def __init__(self, theme: Theme, library: Library) -> None:
        super().__init__()
        self._library, self._is_wanted = library, False
        text = (
            "The guide knows Potluck alone. For other questions, this model suits your computers:"
        )
        self.downloads: CardList[DownloadRow] = CardList(
            lambda row: row.id,
            lambda row: DownloadCardView(
                theme, library, row, lambda row: ask_to_cancel(self, library, row)
            ),
        )
        self.models: CardList[HubRow] = CardList(
            lambda row: row.name, lambda row: HubCardView(theme, library, row)
        )
        vbox(label(text, "body2", wrap=True), self.downloads, self.models, parent=self, spacing=8)
        library.changed.connect(self._show)
        self.hide()

    def want(self, is_wanted: bool) -> None:
        """Suggest a model, or not: the guide answers, or another model does."""
        if is_wanted != self._is_wanted:
            self._is_wanted = is_wanted
            if is_wanted:
                self._library.refresh()
            self._show()

    def _show(self) -> None:
        library = self._library
        has_others = any(not model.is_guide for model in library.models or ())
        best = [row for row in library.recommended if row.is_best_choice]
        is_of_use = self._is_wanted and not has_others and bool(best)
        self.downloads.show_rows(library.downloads if is_of_use else ())
        self.models.show_rows(best if is_of_use and not library.downloads else ())
        self.setVisible(is_of_use)
