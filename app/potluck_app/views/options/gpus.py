"""The check boxes of this computer's GPUs: each is used for models, or stays free."""

from PySide6.QtWidgets import QVBoxLayout, QWidget

from potluck.api.values.gpus import Gpu, GpuRequest
from potluck.api.values.schema import ClusterState
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.http import Problem
from potluck_app.views.widgets.check_box import CheckBox
from potluck_app.views.widgets.controls import clear

_TIP = "Off, nothing of Potluck touches it. What is loaded is shared out anew."


class GpuBoxes(QWidget):
    """Shows what the node says, and changes it. Hidden where there is no GPU."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend
        self._gpus: tuple[Gpu, ...] = ()
        self.boxes: dict[str, CheckBox] = {}  # by the id of the GPU
        self._rows = QVBoxLayout(self)
        self._rows.setContentsMargins(0, 0, 0, 0)
        self._rows.setSpacing(8)
        self.hide()

    def show_state(self, state: ClusterState | None) -> None:
        """Show which GPUs there are, and which are used."""
        gpus = state.node.gpus if state is not None else ()
        if [(gpu.id, gpu.name) for gpu in gpus] != [(gpu.id, gpu.name) for gpu in self._gpus]:
            clear(self._rows)
            self.boxes = {gpu.id: self._box(gpu) for gpu in gpus}
        self._gpus = gpus
        self._check()
        self.setVisible(bool(gpus))

    def _box(self, gpu: Gpu) -> CheckBox:
        box = CheckBox(f"Use for models: {gpu.name}", f"gpu-{gpu.id}")
        box.setToolTip(wording.tip(_TIP))
        box.clicked.connect(lambda used: self._use(gpu.id, used))
        self._rows.addWidget(box)
        return box

    def _use(self, gpu_id: str, used: bool) -> None:
        request = GpuRequest(id=gpu_id, used=used)
        self._backend.call("POST", "/cluster/gpus", request).then(failed=self._refused)

    def _refused(self, problem: Problem) -> None:
        self._check()
        self._backend.report(problem)

    def _check(self) -> None:
        for gpu in self._gpus:
            self.boxes[gpu.id].setChecked(gpu.used)
