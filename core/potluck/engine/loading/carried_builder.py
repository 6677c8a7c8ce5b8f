"""Make what layers have whose hidden states have more numbers behind them."""

from potluck.engine.gates import gate
from potluck.engine.layers.carried import InputTable, LayerInputs
from potluck.engine.layers.row_table import RowTable, TableTarget
from potluck.engine.loading.matrices import MatrixBuilder
from potluck.model.mixing.carried import LayerInputSpec


class CarriedBuilder(MatrixBuilder):
    """Makes embeddings of layers."""

    _table: InputTable | None = None  # of the layers that were made so far

    def _inputs(self, prefix: str, spec: LayerInputSpec, eps: float) -> LayerInputs:
        is_first = self._table is None
        if self._table is None:
            table, (name, shape) = RowTable(spec), spec.table
            self._filling.add(name, TableTarget(table, 0, *shape))
            norm, _ = spec.norm
            self._table = InputTable(table, self.norm(norm, eps, spec.size))
        return LayerInputs(
            spec,
            self._table,
            context=self._linear(prefix, spec.context),
            gate=self._linear(prefix, spec.gate),
            output=self._linear(prefix, spec.output),
            norm=self.norm(prefix + spec.norm_after, eps),
            apply=gate if self.generated is None else self.generated.gate,
            is_first=is_first,
        )
