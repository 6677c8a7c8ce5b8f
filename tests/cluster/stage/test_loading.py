from seeing_variants import gemma_4_config

from potluck.cluster.stage.loading import SMALL_LAYER, has_small_layers
from potluck.model.config import ModelConfig


def test_a_table_on_the_disk_makes_no_layer_large() -> None:
    rows = SMALL_LAYER // 16
    with_table = gemma_4_config(hidden_size_per_layer_input=8, vocab_size_per_layer_input=rows)
    wide = gemma_4_config(intermediate_size=SMALL_LAYER // 16)

    assert has_small_layers(ModelConfig.from_dict(with_table))
    assert not has_small_layers(ModelConfig.from_dict(wide))
