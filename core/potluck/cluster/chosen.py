"""The model that the user chose: a prompt loads it, also after a restart. Until one is chosen, the guide."""

from pathlib import Path

import msgspec
from msgspec import Struct

from potluck.api.values.schema import PlanRequest, ServedModel
from potluck.cluster.master.constraints import without_constraints
from potluck.files import recall, remember
from potluck.store.model_folder import config_file
from potluck.store.registry import LocalModel, model_name


class _Kept(Struct, frozen=True, kw_only=True):
    """The content of the file."""

    request: PlanRequest
    name: str
    path: str
    model_id: str | None = None  # None: it could not be loaded yet


class Chosen:
    """The chosen model, in a small file.

    Args:
        file: replaced as a whole.
        guide: the folder of the model that answers until one is chosen.
    """

    def __init__(self, file: Path, guide: Path) -> None:
        self._file = file
        self.guide = guide
        self._kept = recall(file, _Kept)

    @property
    def request(self) -> PlanRequest:
        """What a prompt loads if nothing is loaded."""
        return self._kept.request if self._kept is not None else PlanRequest()

    @property
    def path(self) -> Path:
        return Path(self._kept.path) if self._kept is not None else self.guide

    def completed(self, request: PlanRequest) -> PlanRequest:
        """The same request; one that names no model is for the chosen one, and an empty one as it was chosen."""
        if request == PlanRequest():
            return self.request
        if request.model is not None or request.shape is not None or self._kept is None:
            return request
        return msgspec.structs.replace(request, model=self._kept.request.model)

    def note(self, request: PlanRequest, model: LocalModel) -> None:
        """A model was loaded because the user asked for it. Which computers took part is not kept."""
        if request.model is None or model.folder is None:
            return
        self._keep(request, model.folder, model.name, model.manifest.model_id)

    def want(self, request: PlanRequest, path: Path) -> None:
        """The user asked for the model at this path, and it could not be loaded: a prompt tries again."""
        self._keep(request, path, model_name(path), None)

    def _keep(self, request: PlanRequest, path: Path, name: str, model_id: str | None) -> None:
        where = str(path.absolute())
        kept = msgspec.structs.replace(without_constraints(request), model=where)
        self._kept = _Kept(request=kept, name=name, path=where, model_id=model_id)
        remember(self._file, self._kept)

    def forget(self, path: Path) -> None:
        """The model at this path was deleted: if it was the chosen one, the guide answers again."""
        if self._kept is not None and Path(self._kept.path) == path:
            self._kept = None
            self._file.unlink(missing_ok=True)

    def served(self) -> ServedModel:
        """The model that the next prompt loads."""
        if self._kept is None:
            return served(self.guide.name, self.guide, (), guide=self.guide)
        aliases = (self._kept.model_id,) if self._kept.model_id is not None else ()
        return served(self._kept.name, Path(self._kept.path), aliases, guide=self.guide)


def served(name: str, folder: Path | None, aliases: tuple[str, ...], *, guide: Path) -> ServedModel:
    """A model as `/v1` lists it; `folder` is None if it has no files."""
    if folder is None:
        return ServedModel(name=name, created=0, aliases=aliases)
    file = config_file(folder) if folder.is_dir() else folder
    try:
        created = int(file.stat().st_mtime)
    except OSError:  # its disk may be unplugged; the model is loaded all the same
        created = 0
    aliases = (*aliases, str(folder))
    return ServedModel(name=name, created=created, aliases=aliases, is_guide=folder == guide)
