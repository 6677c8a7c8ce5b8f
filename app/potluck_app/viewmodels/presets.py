"""The settings that the person has given names, for any conversation."""

from collections.abc import Sequence

from PySide6.QtCore import QObject, Signal

from potluck_app.chats.values import Preset, Settings
from potluck_app.viewmodels.keeper import Keeper


class Presets(QObject):
    """The presets, by name.

    Signals:
        changed: there are others.
    """

    changed = Signal()

    def __init__(self, keeper: Keeper, parent: QObject) -> None:
        super().__init__(parent)
        self._keeper = keeper
        self.all: tuple[Preset, ...] = ()

    def read(self) -> None:
        """Read them from disk."""
        self._keeper.read(lambda history: history.presets(), self._take)

    def save(self, name: str, settings: Settings) -> None:
        """Keep settings under a name, in the place of those that had it."""
        preset = Preset(name=name, settings=settings)
        self._keeper.write(lambda history: history.put_preset(preset))
        self._take([*(p for p in self.all if p.name != name), preset])

    def delete(self, name: str) -> None:
        self._keeper.write(lambda history: history.delete_preset(name))
        self._take([p for p in self.all if p.name != name])

    def _take(self, presets: Sequence[Preset]) -> None:
        self.all = tuple(sorted(presets, key=lambda preset: preset.name.casefold()))
        self.changed.emit()
