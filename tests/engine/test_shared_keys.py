"""Layers that take keys and values of an earlier one have its cache, and go through generated calls."""

import pytest
import torch
from tiny_models import CPU, Pipeline, Reference, config_of, make_model, whole_blocks

from potluck.engine.caches.session_cache import SessionCache
from potluck.engine.generated.run import GeneratedRun
from potluck.engine.token_step import make_token_step
from potluck.model.caches import CacheSizes, session_bytes
from potluck.model.layers import owned_caches
from potluck.model.mixing.carried import cache_owners
from potluck.model.schemes import Cache, Scheme

E2B = "gemma 4 e2b"  # six layers, of which the last three take keys of layers 1 and 2
SIZES = CacheSizes(number_bytes=4)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return make_model(E2B, tmp_path_factory.mktemp("model"), changes=whole_blocks(E2B))


def make_cache(first: int) -> SessionCache:
    """A session's cache of 48 tokens in the layers from one on."""
    layers = config_of(E2B).layers[first:]
    owners = cache_owners([layer.mixer for layer in layers], SIZES.number_bytes)
    cache = SessionCache([layer.cache(SIZES) for layer in layers], torch.float32, CPU, owners)
    cache.resize(48)
    return cache


@pytest.mark.parametrize(("first", "caches"), [(0, 3), (2, 2), (3, 2), (4, 2), (5, 1)])
def test_a_stage_caches_keys_once_that_several_layers_see(first: int, caches: int) -> None:
    cache = make_cache(first)

    assert len({id(layer) for layer in cache.layers}) == len(cache.parts) == caches
    specs = owned_caches(config_of(E2B).layers[first:], SIZES)
    assert cache.nbytes == session_bytes(specs, 48)


def test_what_is_done_to_a_shared_cache_is_done_once() -> None:
    one, other = make_cache(0), make_cache(0)
    for layer in one.layers:
        layer.both.normal_()
    one.begin_step(0, 40)

    other.copy(one, 30)

    assert other.length == 30
    for mine, theirs in zip(other.layers, one.layers, strict=True):
        assert torch.equal(mine.read(25, 5, torch.float32)[0], theirs.read(25, 5, torch.float32)[0])
    other.evict()
    assert other.nbytes == 0


@pytest.mark.parametrize(
    ("scheme", "cache"),
    [("int4", "full"), pytest.param("int8", "int8", marks=pytest.mark.slow)],
)
def test_tokens_through_generated_calls_have_the_bits_of_chunks(
    reference: Reference, scheme: Scheme, cache: Cache
) -> None:
    ids = reference.prompt(40)
    whole = Pipeline(reference, [], scheme, cache)
    cut = Pipeline(reference, [3], scheme, cache)

    assert all(isinstance(run, GeneratedRun) for run in whole.stages[0].weights.runs)
    assert all(make_token_step(stage.weights) is not None for stage in cut.stages)
    one_by_one = whole.run_in_pieces(ids, [1] * 40)
    assert torch.equal(cut.run_in_pieces(ids, [13, *[1] * 27]), one_by_one)


def test_layers_of_16_bits_are_computed_for_one_session_at_a_time(reference: Reference) -> None:
    stage = reference.stage(scheme="bf16")

    assert all(isinstance(run, GeneratedRun) for run in stage.weights.runs)
    assert not stage.weights.computes_together
