"""A query sees the pools with the highest scores, as torch finds them."""

import pytest
import torch

from potluck.engine.kernels.attending.attention_fields import KINDS
from potluck.engine.kernels.attending.pools_kernel import PoolScores
from potluck.engine.kernels.called.generated import GeneratedKernels, host_paths
from potluck.engine.kernels.called.pools import PoolChooser
from potluck.engine.layers.choosing import choose

KERNELS = GeneratedKernels(host_paths()[0])
HEADS, SIZE, CHOSEN, MOST = 5, 20, 7, 300
BEHIND = 8  # numbers of a row that are no key


def make_shape(dtype: torch.dtype) -> PoolScores:
    return PoolScores(heads=HEADS, head_dim=SIZE, scale=0.3, chosen=CHOSEN, kind=KINDS[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shared", [0, 100])
def test_the_highest_scores_are_chosen(dtype: torch.dtype, shared: int) -> None:
    rows = torch.randn(MOST, BEHIND + SIZE).to(dtype)
    before, own = rows[:shared].clone(), rows[shared:].clone()
    stride, behind = rows.stride(0) * rows.itemsize, BEHIND * rows.itemsize
    place = {
        "keys": own.data_ptr() + behind - shared * stride,
        "shared_keys": before.data_ptr() + behind,
        "own_from": shared,
        "stride": stride,
    }
    chooser = PoolChooser(KERNELS, make_shape(dtype), MOST, place)
    keys = rows[:, BEHIND:].float()

    for count in (0, 1, CHOSEN, CHOSEN + 1, 40, MOST):
        queries, weights = torch.randn(HEADS * SIZE), torch.randn(HEADS)
        scores = weights @ (queries.view(HEADS, SIZE) @ keys[:count].T).relu()
        wanted = choose(scores[None], min(count, CHOSEN))[0].nonzero()[:, 0] if count else []
        assert chooser(queries, weights, count).tolist() == list(wanted)


def test_of_equal_scores_the_first_are_chosen_and_none_that_is_a_number_before_nan() -> None:
    rows = torch.ones(MOST, SIZE)
    rows[200] = torch.nan
    place = {"keys": rows.data_ptr(), "stride": rows.stride(0) * 4}
    chooser = PoolChooser(KERNELS, make_shape(torch.float32), MOST, place)

    chosen = chooser(torch.ones(HEADS * SIZE), torch.ones(HEADS), MOST)

    assert chosen.tolist() == [*range(CHOSEN - 1), 200]
