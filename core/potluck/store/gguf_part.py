"""One of the files of a GGUF model, with its tensors as those of a model."""

from dataclasses import dataclass
from pathlib import Path

from potluck.model.manifest import TensorSpan
from potluck.model.quantized import GGUF
from potluck.store.digests import ModelFile, Stamp
from potluck.store.gguf_header import GgufHeader, GgufTensor, read_gguf_header

_PLAIN = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class GgufPart:
    """One of the files of a model."""

    file: ModelFile
    header: GgufHeader

    @classmethod
    def read(cls, path: Path) -> "GgufPart":
        """Read a file's header.

        Raises:
            BrokenModelError: it is damaged.
            OSError: it cannot be read.
        """
        stamp = Stamp.of(path)
        return cls(ModelFile(path.resolve(), stamp, ()), read_gguf_header(path))

    def span(self, name: str, tensor: GgufTensor) -> TensorSpan:
        """The place of a tensor, under this name."""
        return TensorSpan(
            name=name,
            dtype=tensor.kind if tensor.kind in _PLAIN else GGUF + tensor.kind,
            shape=tensor.shape,
            file=self.file.path.name,
            offset=tensor.offset,
            nbytes=tensor.nbytes,
        )
