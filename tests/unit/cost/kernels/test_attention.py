"""Fused attention: what its backward launches and moves besides its products."""

from __future__ import annotations

from itertools import pairwise

import pytest

from foretrace.cost.kernels.attention import BLOCK, attention_fit, computed_pairs, side_bytes
from foretrace.cost.kernels.corrections import family
from foretrace.cost.kernels.model import EfficiencyModel
from foretrace.cost.kernels.parameters import AttentionFit, efficiency
from foretrace.hardware import presets
from foretrace.program.kernels import Attention


def model_of(name: str) -> EfficiencyModel:
    gpu = presets.gpu(name)
    return EfficiencyModel(gpu, efficiency(gpu))


def attention(*, kv_heads: int = 8, backward: bool = True, backend: str = "cudnn") -> Attention:
    return Attention(2, 8, kv_heads, 1024, 1024, 128, 128, 1024 * 512, backward, backend)


def test_launches() -> None:
    assert attention(backward=False).launches == 1
    assert attention().launches == attention(kv_heads=2, backend="flash2").launches == 4
    assert attention(kv_heads=2).launches == 5


def test_backward_moves_more_where_queries_share_keys() -> None:
    assert side_bytes(attention(backward=False)) == 0
    elements = 2 * 8 * 1024 * 128
    assert side_bytes(attention()) == 14 * elements
    assert side_bytes(attention(kv_heads=2)) == 14 * elements + 8 * elements


def test_between_head_sizes_constants_are_between() -> None:
    fits = {("cudnn", False, 64): AttentionFit(0.4, 100.0), ("cudnn", False, 128): AttentionFit(0.6, 200.0)}
    assert attention_fit(fits, "cudnn", False, 32) == AttentionFit(0.4, 100.0)
    assert 0.4 < attention_fit(fits, "flash3", False, 96).efficiency < 0.6


@pytest.mark.parametrize("name", ["a100-80g-sxm", "h100-sxm", "b200", "mi300x"])
def test_every_backend_has_both_ways(name: str) -> None:
    fits = efficiency(presets.gpu(name)).attention
    assert {way for backend, way, _ in fits if backend == "cudnn"} == {False, True}


@pytest.mark.parametrize("name", ["a100-80g-sxm", "h100-sxm", "h200-sxm", "b200"])
@pytest.mark.parametrize("head", [64, 128])
def test_flash_attention_1_in_triton_is_as_much_slower_than_version_2_as_its_paper_says(name: str, head: int) -> None:
    """arXiv:2307.08691, section 4.1: 1.3 to 1.5 times forward, around 2 times backward."""
    fits = efficiency(presets.gpu(name)).attention
    ratios = [
        attention_fit(fits, "flash2", way, head).efficiency / attention_fit(fits, "triton", way, head).efficiency
        for way in (False, True)
    ]
    assert ratios == [pytest.approx(1.4, rel=0.02), pytest.approx(2, rel=0.02)]


def windowed(window: int, *, q: int = 4096, kv: int = 4096, pairs: int | None = None) -> Attention:
    """Attention of each query to itself and at most `window` - 1 keys before it."""
    seen = q * window - window * (window - 1) // 2 if window else q * (kv + 1) // 2
    return Attention(1, 8, 8, q, kv, 64, 64, seen if pairs is None else pairs, window=window)


@pytest.mark.parametrize(("window", "blocks"), [(1, 2), (127, 2), (128, 2), (129, 3), (256, 3), (257, 4), (1024, 9)])
def test_a_window_computes_whole_blocks_of_keys(window: int, blocks: int) -> None:
    """Queries of a block of 128 see keys of the window's blocks, and of the block that the first query's begin in."""
    assert BLOCK == 128
    # The first queries of a sequence see fewer keys, and waste as large a share.
    assert computed_pairs(windowed(window)) == pytest.approx(windowed(window).pairs * blocks * 128 / window)


def test_a_wide_window_computes_no_more_than_a_causal_mask() -> None:
    assert computed_pairs(windowed(0)) == windowed(0).pairs
    assert computed_pairs(windowed(4000)) == 4096 * 4096 / 2
    wide = windowed(4096)
    assert computed_pairs(wide) == wide.pairs, "at least all pairs"


def test_computed_pairs_never_fall_with_the_window() -> None:
    found = [computed_pairs(windowed(window)) for window in range(1, 4097, 17)]
    assert all(later > 0.99 * earlier for earlier, later in pairwise(found))
    assert all(computed_pairs(windowed(window)) >= windowed(window).pairs for window in range(1, 4097, 17))


def test_documents_and_steps_of_a_ring_waste_no_more_than_their_pairs_do() -> None:
    documents = windowed(4096, q=32768, kv=32768, pairs=256 * 128 * 129 // 2)
    assert computed_pairs(documents) < 1.1 * documents.pairs
    whole = windowed(128, q=32768, kv=32768)
    steps = windowed(128, q=32768 // 4, kv=32768 // 4, pairs=whole.pairs // 16)
    assert 16 * computed_pairs(steps) == pytest.approx(computed_pairs(whole), rel=0.01)


def test_a_narrow_window_takes_less_but_not_in_proportion() -> None:
    narrow, wide, all_keys = model_of("h200-sxm").seconds([windowed(128), windowed(1024), windowed(0)])
    assert narrow < wide < all_keys
    assert narrow > all_keys * windowed(128).pairs / windowed(0).pairs


def heads_of(backend: str, *, backward: bool) -> Attention:
    return Attention(4, 32, 8, 8192, 8192, 128, 128, 8192 * 4096, backward, backend)


@pytest.mark.parametrize("backward", [False, True])
def test_cudnn_of_2025_is_slower_on_blackwell_only(backward: bool) -> None:
    """On Hopper nothing else is known of it: it is taken as cuDNN is."""
    both = [heads_of(backend, backward=backward) for backend in ("cudnn_2025", "cudnn")]
    for name in ("b200", "gb200", "b300", "gb300"):
        old, new = model_of(name).seconds(both)
        assert old > 1.05 * new
    for name in ("h100-sxm", "h200-sxm", "a100-80g-sxm"):
        old, new = model_of(name).seconds(both)
        assert old == new
    assert family(both[0]) == family(both[1]), "one calibration serves both"
