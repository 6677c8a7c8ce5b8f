"""A line that opens and folds away what is below it."""

from PySide6.QtCore import QSize

from potluck_app import resources
from potluck_app.theme import Theme
from potluck_app.views.widgets.controls import IconButton

_SIZE, _WIDTH = 16, 11  # pixels: of the arrow, and where the words begin
_CUT = {"chevron-right": 6, "chevron-down": 4}  # pixels that are empty on both sides of it


class Disclosure(IconButton):
    """Words behind an arrow that points down while what is below is open.

    The arrow begins where every line of the page begins, and the words end where the lines end.
    """

    def __init__(self, theme: Theme, text: str, accessible_name: str, name: str) -> None:
        super().__init__(theme, "chevron-right", accessible_name, name, text=text)
        self.setProperty("kind", "inline")

    def show_open(self, is_open: bool) -> None:
        """Turn the arrow."""
        self.set_icon("chevron-down" if is_open else "chevron-right")

    def tint(self) -> None:
        cut = _CUT[self._icon]
        gap = _WIDTH - (_SIZE - 2 * cut)
        self.setIconSize(QSize(_WIDTH, _SIZE))
        self.setIcon(resources.icon(self._icon, self._theme.tokens.text2, _SIZE, gap=gap, cut=cut))
