"""What a vision tower is made of: patches of a picture in, rows of the decoder's hidden size out.

The towers of all families are the same transformer (https://arxiv.org/abs/2010.11929). A `TowerFacts` says in what
those of a family differ, a `TowerSpec` has the sizes of one model.
"""

from dataclasses import dataclass
from typing import Literal

from potluck.model.quantized import Shape

ROOTS = (
    "visual.", "vision_tower.", "vision_model.", "vision_embedder.", "multi_modal_projector.", "embed_vision.",
    "image_newline", "connector.", "vision_encoder.", "vision_projection.",
)  # fmt: skip
"""With what the names of a tower's tensors begin."""

MOST_ROWS = 2048
"""Rows of one picture. A larger picture is made smaller, so that it fits this many: a tower's work grows with the
square of them, and a laptop takes a minute for these."""
MOST_PIXELS = 1 << 23
"""Of a picture as a tower takes it."""


def is_of_tower(name: str) -> bool:
    """Whether a tensor belongs to a vision tower."""
    return name.startswith(ROOTS)


NormKind = Literal["layer", "rms", "plus", "plain"]
"""A norm with a mean and a bias; one without; one whose factor is 1 more than what files have; one without a factor."""

PatchForm = Literal["convolution", "matrix", "pixels"]
"""As a convolution, as a matrix, or as one for patches that have the colours of a pixel side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merger:
    """How the patches of one cell become a row of the decoder.

    Attributes:
        kind: "mlp": joined; "mean": their mean; "joined": as "mlp" after a product that makes one patch of them; "gated":
            such a product, a second one, their norm and GELU, and an MLP with a gate.
        norm: the norm before, of each patch or, with `norms_cell`, of the joined ones; "": there is none.
        norm_kind: None: as in the tower.
        products: the matrices in the order of use, with the activation between them.
        has_bias: whether they have one.
        is_turned: whether the last is stored as (in, out).
        is_scaled: of "mean": whether it is multiplied with the root of the tower's width.
        standard: vectors that are subtracted from what is merged, and multiplied with it then, before the norm.
    """

    kind: Literal["mlp", "mean", "joined", "gated"]
    norm: str = ""
    norm_kind: NormKind | None = None
    products: tuple[str, ...]
    norms_cell: bool = False
    has_bias: bool = True
    is_turned: bool = False
    is_scaled: bool = False
    standard: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassToken:
    """A vector that goes through the layers with the patches, and is left out of what they become.

    Attributes:
        name: of the vector.
        is_last: whether its position is the last one of the table, and not the first one.
        has_batch: whether files have it and the table with dimensions of size 1 in front.
    """

    name: str
    is_last: bool = False
    has_batch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerFacts:
    """In what the towers of a family differ from those of others.

    Attributes:
        patches: the name of the matrix that patches are multiplied with.
        patch_form: how it is stored.
        patch_norms: norms of a patch before and after that product; "": there is none.
        is_centred: whether pixels from 0 to 1 are made numbers from -1 to 1 before it.
        frames: how often the picture stands in a patch, of towers that also see films.
        frames_apart: whether files have a matrix for each of these.
        positions: the name of the table of positions that is added to patches, if there is one.
        has_axes: of the table: whether it is two, of columns and of rows, along which dimension; None: it is one.
        is_stretched: whether that table is stretched over the picture, whatever its size.
        is_smooth: whether it then is between cells by more than their neighbours, and its edges are those of the picture.
        token: a vector beside the patches, if there is one.
        is_tiled: whether pictures come as squares of one size, one below the other, each read alone.
        line_end: the name of a row that stands in prompts after each line of a picture, which the tower gives behind all others.
        rope: how frequencies are shared out between rows and columns of patches: both have the same ("halves"),
            or every other one ("turns"); None: there is no rope.
        turns_columns_first: whether the first half turns by the column.
        rope_from: the position of the first row and the first column.
        pairs: where the two numbers are that rope turns together: half a head apart ("across"), side by side ("beside"),
            or half of the part of their axis apart ("apart").
        layer: the prefix of a layer.
        norms: of a layer, before its attention and before its MLP.
        norms_after: of what these give.
        norm_kind: of all of them.
        scales: vectors that attention's and MLP's outputs are multiplied with.
        qkv: the matrix of queries, keys and values, or the three.
        qk_norms: norms of queries and of keys, if there are some.
        norms_heads: whether each head has them for itself, and values one without a factor.
        is_scaled: whether attention's scores are divided by the root of a head's size.
        output: the matrix after attention.
        mlp: its matrices: two, or three with a gate as the first.
        has_bias: whether attention and MLP have biases.
        has_qkv_bias: the same of `qkv`, if it differs.
        bounds: whether what goes into the products of a layer and what comes out stays within bounds, which have this
            shape; None: it is as it is.
        before, after: a norm before the first layer, and one after the last.
        merger: how patches become rows.
        deep: the mergers whose rows are added in the first layers of the decoder, by number.
        axes: how the pairs of the decoder's rope are shared out between the axes of a picture: in blocks, or
            in turns; None: a picture's rows have one position after the other, as text.
        sections: how many pairs each axis has, where the files do not say.
        sees_ahead: whether all rows of a picture attend to each other, in all layers or in those with a window.
    """

    patches: str
    patch_form: PatchForm = "convolution"
    patch_bias: bool = True
    patch_norms: tuple[str, str] | None = None
    is_centred: bool = False
    frames: int = 1
    frames_apart: bool = False
    positions: str | None = None
    has_axes: Literal[0, 1] | None = None
    is_stretched: bool = False
    is_smooth: bool = False
    token: ClassToken | None = None
    is_tiled: bool = False
    line_end: str | None = None
    rope: Literal["halves", "turns"] | None = None
    turns_columns_first: bool = False
    rope_from: Literal[0, 1] = 0
    pairs: Literal["across", "beside", "apart"] = "across"
    layer: str = ""
    norms: tuple[str, str] = ("", "")
    norms_after: tuple[str, str] | None = None
    norm_kind: NormKind
    scales: tuple[str, str] | None = None
    qkv: tuple[str, ...] = ()
    qk_norms: tuple[str, str] | None = None
    norms_heads: bool = False
    is_scaled: bool = True
    output: str = ""
    mlp: tuple[str, ...] = ()
    has_bias: bool = True
    has_qkv_bias: bool | None = None
    bounds: Shape | None = None
    before: str | None = None
    after: str | None = None
    merger: Merger
    deep: Merger | None = None
    axes: Literal["blocks", "turns"] | None = None
    sections: tuple[int, int, int] = (0, 0, 0)
    sees_ahead: Literal["all", "windows"] | None = None

    @property
    def patch_matrices(self) -> tuple[str, ...]:
        """The names of the matrices that a patch, or each frame of it, is multiplied with."""
        more = range(1, self.frames if self.frames_apart else 1)
        return f"{self.patches}.weight", *(f"{self.patches}.weight.{frame}" for frame in more)


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerSpec:
    """The tower of one model.

    Attributes:
        name: of the row of the table of towers that it comes from.
        width, heads, intermediate, layers: sizes of the transformer.
        out: the decoder's hidden size.
        middle: numbers between the products of the merger, and of those in the tower.
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
        shapes: lines of squares, and squares of each, that pictures may be cut into, if only some; the whole picture is
            one square more.
    """

    facts: TowerFacts
    name: str = ""
    width: int
    heads: int
    intermediate: int
    layers: int
    out: int
    middle: tuple[int, ...]
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
    shapes: tuple[tuple[int, int], ...] = ()

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def cell(self) -> int:
        """Patches of a cell."""
        return self.merge * self.merge

    @property
    def cell_side(self) -> int:
        """Pixels of the side of a cell."""
        return self.patch * self.merge

    @property
    def row(self) -> int:
        """Numbers of a row: those for the decoder's input, and those for its first layers."""
        return self.out * (1 + len(self.deep_layers))

    @property
    def square(self) -> int:
        """Pixels of the side of the square that it takes, or several of; 0: it takes any size."""
        facts = self.facts
        is_free = facts.positions is None or facts.is_stretched or facts.has_axes is not None
        return 0 if is_free else self.side * self.patch

    @property
    def rows_at_once(self) -> int:
        """The most rows that it makes in one pass."""
        return (self.square // self.cell_side) ** 2 or MOST_ROWS

    @property
    def rows_of_picture(self) -> int:
        """The most rows of a picture."""
        if self.shapes:
            squares = 1 + max(tall * wide for tall, wide in self.shapes)
            return squares * self.rows_at_once + (self.facts.line_end is not None)
        return MOST_ROWS if self.facts.is_tiled else self.rows_at_once

    def takes(self, height: int, width: int) -> bool:
        """Whether it reads pictures of so many pixels: whole cells, no more than `rows_of_picture` of them."""
        side, most = self.cell_side, self.rows_of_picture
        if height % side or width % side or not 0 < height * width <= most * side * side:
            return False
        if self.square:
            most = height if self.facts.is_tiled else self.square
            return width == self.square and height % self.square == 0 and height <= most
        return self.facts.has_axes is None or max(height, width) <= self.side * self.patch

    def tensors(self) -> dict[str, Shape]:
        """Names and shapes of all its tensors."""
        facts, width = self.facts, self.width
        found = self._patches() | self._positions()
        for name in (facts.before, facts.after):
            if name is not None:
                found |= self._norm(name, width)
        for layer in range(self.layers):
            found |= self._layer(facts.layer.format(layer))
        found |= self._merger(facts.merger, "")
        if facts.line_end is not None:
            found[facts.line_end] = (self.out,)
        if facts.deep is not None:
            for number in range(len(self.deep_layers)):
                found |= self._merger(facts.deep, str(number))
        return found

    def _patches(self) -> dict[str, Shape]:
        facts, width, size = self.facts, self.width, 3 * self.patch * self.patch
        shape: Shape = (width, size)
        if facts.patch_form == "convolution":
            has_frames = facts.frames > 1 and not facts.frames_apart
            frames = (facts.frames,) if has_frames else ()
            shape = (width, 3, *frames, self.patch, self.patch)
        found: dict[str, Shape] = dict.fromkeys(facts.patch_matrices, shape)
        if facts.patch_bias:
            found[f"{facts.patches}.bias"] = (width,)
        if facts.patch_norms is not None:
            before, after = facts.patch_norms
            found |= self._norm(before, size) if before else {}
            found |= self._norm(after, width)
        return found

    def _positions(self) -> dict[str, Shape]:
        """The table of positions, and the vector beside the patches."""
        facts, width = self.facts, self.width
        found: dict[str, Shape] = {}
        token, batch = facts.token, (1,) if facts.token and facts.token.has_batch else ()
        if token is not None:
            found[token.name] = (*batch, *batch, width)
        if facts.positions is not None and facts.has_axes is not None:
            shape = [self.side, width]
            shape.insert(facts.has_axes, 2)
            found[facts.positions] = tuple(shape)
        elif facts.positions is not None:
            found[facts.positions] = (*batch, self.side * self.side + (token is not None), width)
        return found

    def _layer(self, prefix: str) -> dict[str, Shape]:
        facts, width = self.facts, self.width
        found: dict[str, Shape] = {}
        for name in (*facts.norms, *(facts.norms_after or ())):
            found |= self._norm(prefix + name, width)
        for name in facts.scales or ():
            found[prefix + name] = (width,)
        size = self.head_dim if facts.norms_heads else width
        for name in facts.qk_norms or ():
            found[f"{prefix}{name}.weight"] = (size,)
        has_qkv_bias = facts.has_bias if facts.has_qkv_bias is None else facts.has_qkv_bias
        for name in facts.qkv:
            rows = width * 3 // len(facts.qkv)
            found |= _matrix(prefix + name, rows, width, has_bias=has_qkv_bias)
        *first, last = facts.mlp
        shapes = [(facts.output, width, width), (last, width, self.intermediate)]
        shapes += [(name, self.intermediate, width) for name in first]
        for name, rows, columns in shapes:
            found |= _matrix(prefix + name, rows, columns, has_bias=facts.has_bias)
        if facts.bounds is not None:
            for name in (*facts.qkv, facts.output, *facts.mlp):
                found |= dict.fromkeys(bounds_of(prefix + name), facts.bounds)
        return found

    def _norm(self, name: str, size: int, kind: NormKind | None = None) -> dict[str, Shape]:
        kind = kind or self.facts.norm_kind
        if kind == "plain":
            return {}
        found: dict[str, Shape] = {f"{name}.weight": (size,)}
        return found | {f"{name}.bias": (size,)} if kind == "layer" else found

    def _gated(self, merger: Merger) -> dict[str, Shape]:
        """The merger's tensors of that kind."""
        whole, second, *gate, last = merger.products
        found: dict[str, Shape] = {
            f"{whole}.weight": (self.out, self.width, self.merge, self.merge),
            f"{whole}.bias": (self.out,),
            f"{second}.weight": (self.out, self.out),
            f"{last}.weight": (self.out, self.middle[0]),
        }
        found |= {f"{name}.weight": (self.middle[0], self.out) for name in gate}
        return found | self._norm(merger.norm, self.out, merger.norm_kind)

    def _merger(self, merger: Merger, number: str) -> dict[str, Shape]:
        if merger.kind == "gated":
            return self._gated(merger)
        joined = self.width * self.cell
        size = self.width if merger.kind == "mean" else joined
        found: dict[str, Shape] = {}
        if merger.norm or merger.norm_kind:
            name = merger.norm.format(number)
            found |= self._norm(name, joined if merger.norms_cell else self.width, merger.norm_kind)
        for name in merger.standard or ():
            found[name] = (self.width,)
        names = [name.format(number) for name in merger.products]
        if merger.kind == "joined":
            found[f"{names.pop(0)}.weight"] = (self.width, joined)
            size = self.width
        for name, rows in zip(names, (*self.middle, self.out), strict=True):
            found |= _matrix(name, rows, size, has_bias=merger.has_bias)
            size = rows
        if merger.is_turned:  # as a parameter of its own
            rows, columns = found.pop(f"{names[-1]}.weight")
            found[names[-1]] = (columns, rows)
        return found


def bounds_of(product: str) -> tuple[str, str, str, str]:
    """The names of the bounds of a product's input, and of those of its output."""
    name = product.removesuffix(".linear")
    return f"{name}.input_min", f"{name}.input_max", f"{name}.output_min", f"{name}.output_max"


def _matrix(name: str, rows: int, width: int, *, has_bias: bool) -> dict[str, Shape]:
    found: dict[str, Shape] = {f"{name}.weight": (rows, width)}
    return found | {f"{name}.bias": (rows,)} if has_bias else found
