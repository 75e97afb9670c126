"""Ops that say their kernels: priced, with the sources and the band of what they are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from foretrace import Machine, Mesh, PriceSources, ProgramBuilder, simulate
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.cost.kernels.interface import KernelPrices
from foretrace.cost.pricing import COMMON, price
from foretrace.program.expand import expand
from foretrace.program.kernels import Gemm, Kernel, Stream, kernels_text
from foretrace.program.program import Program, Source

TEXT = kernels_text([(2, Gemm(1024, 1024, 1024)), (1, Stream("add", 1000, 1000))])


class Flat:
    """A GEMM takes 1 s, plus or minus 10 %; all else 2 s, plus or minus 50 %."""

    sources = (Source("gemms", 0.9, 1.1), Source("others", 0.5, 1.5))
    notes = (Diagnostic("note", "price-source", "flat prices"),)

    def price(self, kernels: Sequence[Kernel]) -> KernelPrices:
        other = np.array([not isinstance(one, Gemm) for one in kernels], dtype=np.int64)
        return KernelPrices(1.0 + other, other, np.where(other, 0.5, 0.9), np.where(other, 1.5, 1.1))


def program(*texts: str | None) -> Program:
    build = ProgramBuilder(Mesh())
    role = build.role("all", [0])
    for text in texts:
        role.compute("op", 8.0 if text is None else math.nan, kernel=text)
    return build.program()


def test_kernels_of_an_op_add_up() -> None:
    prices = price(expand(program(None, TEXT)), kernels=Flat())
    assert prices.duration_s[0].tolist() == [8.0, 4.0]
    assert prices.low.tolist() == pytest.approx([1.0, ((2 * 0.9 + 2 * 0.5) / 4) ** COMMON])
    assert prices.high.tolist() == pytest.approx([1.0, ((2 * 1.1 + 2 * 1.5) / 4) ** COMMON])
    assert prices.seconds_by_source(np.array([8.0, 4.0])).tolist() == pytest.approx([8.0, 2.0, 2.0])


def test_the_answer_says_which_source_has_which_share() -> None:
    answer = simulate(program(None, TEXT), Machine(prices=PriceSources(kernels=Flat())))
    assert answer.step_time_s == 12.0
    assert [(one.source, one.share) for one in answer.provenance][1:] == [("gemms", 2 / 12), ("others", 2 / 12)]
    assert answer.step_time_band_s == pytest.approx((8 + 4 * 0.7**COMMON, 8 + 4 * 1.3**COMMON))
    assert "flat prices" in [one.message for one in answer.diagnostics]


def test_kernels_of_one_pricer_are_off_together() -> None:
    gemm, add = kernels_text([(1, Gemm(64, 64, 64))]), kernels_text([(1, Stream("add", 8, 8))])
    answer = simulate(program(gemm, add), Machine(prices=PriceSources(kernels=Flat())))
    assert answer.step_time_band_s == pytest.approx((0.9**COMMON + 2 * 0.5**COMMON, 1.1**COMMON + 2 * 1.5**COMMON))


def test_a_cluster_prices_kernels_by_itself() -> None:
    answer = simulate(program(TEXT), Machine("h100-dgx"))
    assert 0 < answer.step_time_s < 1e-4
    assert "h100" in answer.provenance[0].source


def test_without_prices_the_error_says_what_is_missing() -> None:
    with pytest.raises(InputError) as error:
        price(expand(program(TEXT)))
    assert error.value.code == "unpriced-op"
    assert "name a cluster" in str(error.value.hint)
