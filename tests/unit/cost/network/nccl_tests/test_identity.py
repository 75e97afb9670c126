"""Measured collectives are of the GPU that they price, or refused."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import InputError
from foretrace.cost.network.nccl_tests.aggregation import measurements_of
from foretrace.cost.network.nccl_tests.identity import of_gpu, states_gpu
from foretrace.cost.network.nccl_tests.records import Measurement, Measurements
from foretrace.program.columns import Collective


def measured(*gpus: str) -> Measurements:
    rows = [
        Measurement(Collective.ALL_REDUCE, 8, 1, 1 << (10 + i), 1e-4 * (i + 1), "a.csv", i + 2, gpu)
        for i, gpu in enumerate(gpus)
    ]
    return measurements_of(rows)


def test_the_same_gpu_and_one_that_is_not_named() -> None:
    for names in (("H100", "NVIDIA H100 80GB HBM3"), ("", "")):
        found = measured(*names)
        assert of_gpu(found, "h100-sxm") is found
        assert states_gpu(found) is bool(names[0])


def test_another_gpu_is_refused_at_its_line() -> None:
    with pytest.raises(InputError) as caught:
        of_gpu(measured("A100-SXM4-40GB", "A100-SXM4-40GB", ""), "h100-sxm")
    assert (caught.value.code, caught.value.where) == ("other-gpu", "a.csv:2")


def test_rows_of_other_gpus_are_left_out_where_some_are_of_this_one() -> None:
    found = of_gpu(measured("A100", "H100", "MI300X"), "h100-sxm")
    assert [row.gpu for row in found.rows] == ["H100"]
    assert [table.size_bytes.tolist() for table in found.tables] == [[2048.0]]
    assert [(note.level, note.code) for note in found.diagnostics] == [("warning", "other-gpu")]


def test_another_memory_is_said() -> None:
    found = of_gpu(measured("A100-SXM4-40GB"), "a100-80g-sxm")
    assert len(found.rows) == 1
    assert [(note.level, note.code) for note in found.diagnostics] == [("note", "other-gpu")]
