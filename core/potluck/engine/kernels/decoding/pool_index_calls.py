"""An indexer of pools in a layer's kernel: what it caches of a token, and the rows that the token sees."""

from collections.abc import Mapping
from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.attending.index_kernel import CopyRows
from potluck.engine.kernels.attending.pool_rows_kernel import PoolHeads, PoolKeys, emit_expand
from potluck.engine.kernels.attending.pools_kernel import ChoosePools
from potluck.engine.kernels.decoding.forms import FloatForm, Form
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import NULL
from potluck.engine.kernels.writing.memory import Pointer, Record
from potluck.engine.kernels.writing.values import Value
from potluck.model.formats import WeightFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolIndexShape:
    """What the indexer of a layer is written for."""

    heads: PoolHeads
    queries_format: WeightFormat
    keys_format: WeightFormat
    gates_format: WeightFormat


@dataclass(frozen=True, kw_only=True)
class PoolIndexCalls:
    """Emits the indexer."""

    e: Emitter
    shape: PoolIndexShape
    forms: Mapping[WeightFormat, Form]
    router: FloatForm  # of a matrix of f32
    functions: tuple[ir.Function, ...]  # of keys, of choosing, of copying rows
    step: Record
    layer: Record
    normed: tuple[Pointer, int]  # the normed hidden states in f32, and how many

    def cache_key(self) -> None:
        """Make the token's key and gates of the normed hidden states, and cache them."""
        e, shape, step, layer = self.e, self.shape, self.step, self.layer
        size, (normed, width) = shape.heads.scores.head_dim, self.normed
        made: Pointer = step["index_key"]
        for name, held, out in (
            ("index_keys", shape.keys_format, made),
            ("index_gates", shape.gates_format, made + size),
        ):
            form = self.forms[held]
            form.multiply(layer[name], form.as_is(normed, width), out, NULL, size, width)
        arguments = PoolKeys.store(
            e,
            made=made,
            norm=layer["index_norm"],
            gate_bias=layer["index_gate_bias"],
            keys=layer["keys"],
            own_from=layer["own_from"],
            shared_keys=layer["shared_keys"],
            position=step["position"],
        )
        e.call(self.functions[0], [arguments])

    def choose(self, query_rank: int, epsilon: float) -> Value:
        """Choose pools, and copy the rows of all tokens that the token sees; return how many these are."""
        e, shape, step, layer = self.e, self.shape, self.step, self.layer
        heads, scores, (normed, width) = shape.heads, shape.heads.scores, self.normed
        weights = step["head_weights"]
        self.router.multiply(layer["head_weights"], normed, weights, NULL, scores.heads, width)
        form, queries = self.forms[shape.queries_format], step["index_queries"]
        inputs = form.normed(step["wide"], query_rank, layer["query_norm"], epsilon)
        form.multiply(layer["index_queries"], inputs, queries, NULL, scores.q_size, query_rank)
        cached, end = heads.cached, step["position"] + 1
        # In the row of a pool's last token, behind what attention reads.
        behind = (heads.pool - 1) * cached.cached_bytes + cached.row_bytes
        arguments = ChoosePools.store(
            e,
            queries=queries,
            weights=weights,
            keys=layer["keys"].skip(behind),
            own_from=layer["own_from"] // heads.pool,
            shared_keys=layer["shared_keys"].skip(behind),
            stride=heads.pool * cached.cached_bytes,
            count=end // heads.pool,
            places=step["pools"],
            **{name: step[name] for name in ("scores", "job", "shares")},
        )
        e.call(self.functions[1], [arguments])
        places = step["places"]
        count = emit_expand(e, heads.pool, step["pools"], scores.chosen, end, places)
        rows = {name: layer[name] for name in ("keys", "own_from", "shared_keys")}
        arguments = CopyRows.store(e, places=places, rows=step["rows"], **rows)
        self.router.threads.call(self.functions[2], arguments, count)
        return count
