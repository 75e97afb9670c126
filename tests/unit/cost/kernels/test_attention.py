"""Fused attention: what its backward launches and moves besides its products."""

from __future__ import annotations

import pytest

from foretrace.cost.kernels.attention import attention_fit, side_bytes
from foretrace.cost.kernels.parameters import AttentionFit, efficiency
from foretrace.hardware import presets
from foretrace.program.kernels import Attention


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
