"""What a vision tower is made of: patches of a picture in, rows of the decoder's hidden size out.

The towers of all families are the same transformer (https://arxiv.org/abs/2010.11929). A `TowerFacts` says in what
those of a family differ, a `TowerSpec` has the sizes of one model.
"""

from dataclasses import dataclass
from typing import Literal

from potluck.model.quantized import Shape

ROOTS = ("visual.", "vision_tower.", "multi_modal_projector.")
"""With what the names of a tower's tensors begin."""

MOST_ROWS = 2048
"""Rows of one picture. A larger picture is made smaller, so that it fits this many: a tower's work grows with the
square of them, and a laptop takes a minute for these."""
MOST_PIXELS = 1 << 23
"""Of a picture as a tower takes it."""


def is_of_tower(name: str) -> bool:
    """Whether a tensor belongs to a vision tower."""
    return name.startswith(ROOTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merger:
    """How the patches of one cell become a row of the decoder.

    Attributes:
        kind: "mlp": joined, and two products; "mean": their mean, and one product with a matrix that is
            stored as (in, out); "joined": as "mlp" after a product that makes one patch of them.
        norm: the norm before, of each patch or, with `norms_cell`, of the joined ones.
        products: the matrices in the order of use.
        has_bias: whether they have one.
        has_whole_norm: of "mean": whether files have the factor of the norm as it is, and not 1 less.
    """

    kind: Literal["mlp", "mean", "joined"]
    norm: str
    products: tuple[str, ...]
    norms_cell: bool = False
    has_bias: bool = True
    has_whole_norm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerFacts:
    """In what the towers of a family differ from those of others.

    Attributes:
        patches: the name of the matrix that patches are multiplied with.
        frames: how often the picture stands in a patch, of towers that also see films.
        frames_apart: whether files have a matrix for each of these.
        positions: the name of the table of positions that is added to patches, if there is one.
        is_stretched: whether that table is stretched over the picture, whatever its size.
        rope: how pairs are shared out between rows and columns of patches: the first half turns by the row ("halves"),
            or every other pair ("turns"); None: there is no rope.
        has_pairs: whether queries and keys have the two numbers that rope turns together side by side.
        layer: the prefix of a layer.
        norms: of a layer, before its attention and before its MLP.
        norm_kind: "layer": with a mean and a bias; "rms": without.
        qkv: the matrix of queries, keys and values, or the three.
        output: the matrix after attention.
        mlp: its matrices: two, or three with a gate as the first.
        has_bias: whether attention and MLP have biases.
        before, after: a norm before the first layer, and one after the last.
        merger: how patches become rows.
        deep: the mergers whose rows are added in the first layers of the decoder, by number.
        axes: how the pairs of the decoder's rope are shared out between the axes of a picture: in blocks, or
            in turns; None: a picture's rows have one position after the other, as text.
        sections: how many pairs each axis has, where the files do not say.
        sees_ahead: whether all rows of a picture attend to each other.
    """

    patches: str
    patch_bias: bool = True
    frames: int = 1
    frames_apart: bool = False
    positions: str | None = None
    is_stretched: bool = False
    rope: Literal["halves", "turns"] | None = None
    has_pairs: bool = False
    layer: str
    norms: tuple[str, str]
    norm_kind: Literal["layer", "rms"]
    qkv: tuple[str, ...]
    output: str
    mlp: tuple[str, ...]
    has_bias: bool = True
    before: str | None = None
    after: str | None = None
    merger: Merger
    deep: Merger | None = None
    axes: Literal["blocks", "turns"] | None = None
    sections: tuple[int, int, int] = (0, 0, 0)
    sees_ahead: bool = False

    @property
    def patch_matrices(self) -> tuple[str, ...]:
        """The names of the matrices that a patch, or each frame of it, is multiplied with."""
        more = range(1, self.frames if self.frames_apart else 1)
        return f"{self.patches}.weight", *(f"{self.patches}.weight.{frame}" for frame in more)


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerSpec:
    """The tower of one model.

    Attributes:
        width, heads, intermediate, layers: sizes of the transformer.
        out: the decoder's hidden size.
        patch: pixels of a patch's side.
        merge: patches of a cell's side; a cell becomes one row.
        side: of the table of positions, in patches; 0: there is none.
        window: cells of the side of the windows that most layers attend in; 0: all see the whole picture.
        whole_layers: the layers that see it whatever the window.
        deep_layers: the layers whose output is also given to the decoder's first layers.
        norm_eps, merger_eps: of the norms in the tower, and of the merger's.
        theta: of its rope.
        axes: for each pair of the decoder's rope the axis of a picture by which it turns: 0 time, 1 row,
            2 column. Empty: all turn by one position.
    """

    facts: TowerFacts
    width: int
    heads: int
    intermediate: int
    layers: int
    out: int
    patch: int
    merge: int
    side: int = 0
    window: int = 0
    whole_layers: frozenset[int] = frozenset()
    deep_layers: tuple[int, ...] = ()
    activation: str = "gelu_pytorch_tanh"
    merger_activation: str = "gelu"
    norm_eps: float = 1e-6
    merger_eps: float = 1e-6
    theta: float = 10000.0
    axes: tuple[int, ...] = ()

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def cell(self) -> int:
        """Patches of a cell."""
        return self.merge * self.merge

    @property
    def row(self) -> int:
        """Numbers of a row: those for the decoder's input, and those for its first layers."""
        return self.out * (1 + len(self.deep_layers))

    def takes(self, height: int, width: int) -> bool:
        """Whether it reads pictures of so many pixels: whole cells, no more than `MOST_ROWS` of them."""
        side = self.patch * self.merge
        if height % side or width % side or not 0 < height * width <= MOST_ROWS * side * side:
            return False
        fixed = self.side * self.patch
        return self.side == 0 or self.facts.is_stretched or height == width == fixed

    def tensors(self) -> dict[str, Shape]:
        """Names and shapes of all its tensors."""
        facts, width = self.facts, self.width
        has_frames = facts.frames > 1 and not facts.frames_apart
        shape = (width, 3, *((facts.frames,) if has_frames else ()), self.patch, self.patch)
        found: dict[str, Shape] = dict.fromkeys(facts.patch_matrices, shape)
        if facts.patch_bias:
            found[f"{facts.patches}.bias"] = (width,)
        if facts.positions is not None:
            found[facts.positions] = (self.side * self.side, width)
        for name in (facts.before, facts.after):
            if name is not None:
                found |= self._norm(name, width)
        for layer in range(self.layers):
            found |= self._layer(facts.layer.format(layer))
        found |= self._merger(facts.merger, "")
        if facts.deep is not None:
            for number in range(len(self.deep_layers)):
                found |= self._merger(facts.deep, str(number))
        return found

    def _layer(self, prefix: str) -> dict[str, Shape]:
        facts, width = self.facts, self.width
        found: dict[str, Shape] = {}
        for name in facts.norms:
            found |= self._norm(prefix + name, width)
        for name in facts.qkv:
            found |= self._matrix(prefix + name, width * 3 // len(facts.qkv), width)
        found |= self._matrix(prefix + facts.output, width, width)
        *first, last = facts.mlp
        for name in first:
            found |= self._matrix(prefix + name, self.intermediate, width)
        return found | self._matrix(prefix + last, width, self.intermediate)

    def _norm(self, name: str, size: int) -> dict[str, Shape]:
        found: dict[str, Shape] = {f"{name}.weight": (size,)}
        return found | {f"{name}.bias": (size,)} if self.facts.norm_kind == "layer" else found

    def _matrix(self, name: str, rows: int, width: int) -> dict[str, Shape]:
        found: dict[str, Shape] = {f"{name}.weight": (rows, width)}
        return found | {f"{name}.bias": (rows,)} if self.facts.has_bias else found

    def _merger(self, merger: Merger, number: str) -> dict[str, Shape]:
        joined = self.width * self.cell
        norm = merger.norm.format(number)
        names = [name.format(number) for name in merger.products]
        if merger.kind == "mean":
            return {f"{norm}.weight": (self.width,), names[0]: (self.width, self.out)}
        found = self._norm(norm, joined if merger.norms_cell else self.width)
        if merger.kind == "joined":
            found[f"{names.pop(0)}.weight"] = (self.width, joined)
        sizes = (joined, joined) if merger.kind == "mlp" else (self.out, self.width)
        for name, shape in zip(names, (sizes, (self.out, sizes[0])), strict=True):
            found[f"{name}.weight"] = shape
            if merger.has_bias:
                found[f"{name}.bias"] = (shape[0],)
        return found
