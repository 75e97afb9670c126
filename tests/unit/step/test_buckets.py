from __future__ import annotations

import pytest

from foretrace.step.buckets import (
    DDP_BUCKET_BYTES,
    DDP_FIRST_BUCKET_BYTES,
    Bucket,
    ddp_buckets,
    even_ddp_buckets,
    megatron_buckets,
    megatron_limit,
    spread_evenly,
)
from foretrace.step.end import even_megatron_buckets
from foretrace.step.spec import ChunkSpec, Unit, Work

MIB = 1 << 20


def chunk(*layers: int) -> ChunkSpec:
    """Units with these layers; -1 is an end of the model."""
    return ChunkSpec(tuple(Unit(Work("unit", (), (), ()), layer) for layer in layers))


class TestMegatron:
    def test_a_bucket_has_40_million_parameters_or_1_million_for_each_rank(self) -> None:
        assert [megatron_limit(ranks) for ranks in (2, 40, 64)] == [40_000_000, 40_000_000, 64_000_000]

    def test_the_first_chunk_of_the_first_stage_closes_buckets_from_the_last_unit_on(self) -> None:
        assert megatron_buckets(0, 0, [5, 0, 30, 20, 25], 40) == [Bucket(0, 3, 4, 45), Bucket(0, 0, 2, 35)]

    @pytest.mark.parametrize(("stage", "number"), [(1, 0), (0, 1), (3, 2)])
    def test_others_are_one_bucket(self, stage: int, number: int) -> None:
        assert megatron_buckets(stage, number, [5, 0, 30, 20, 25], 40) == [Bucket(number, 0, 4, 80)]

    def test_nothing_to_reduce(self) -> None:
        assert megatron_buckets(0, 0, [0, 0], 40) == []

    def test_layers_of_unknown_size_are_taken_to_be_equal_with_the_ends_next_to_them(self) -> None:
        found = even_megatron_buckets(100, 0, [(1, chunk(2, 3, -1)), (0, chunk(-1, 0, 1))], 25)
        # The second chunk is one bucket; in the first, the embedding counts to layer 0.
        assert found == [Bucket(1, 0, 1, 50), Bucket(0, 2, 2, 25), Bucket(0, 0, 1, 25)]

    def test_without_layers_all_units_count(self) -> None:
        assert even_megatron_buckets(10, 1, [(0, chunk(-1, -1))], 4) == [Bucket(0, 0, 1, 10)]


class TestDdp:
    def test_a_bucket_is_closed_once_it_has_reached_its_size(self) -> None:
        sizes = [MIB // 2, MIB, 20 * MIB, 4 * MIB, 30 * MIB, MIB]
        assert ddp_buckets((size, "bf16") for size in sizes) == [range(2), range(2, 5), range(5, 6)]

    def test_dtypes_are_apart(self) -> None:
        assert ddp_buckets([(10, "fp32"), (10, "bf16"), (10, "bf16")]) == [range(1), range(1, 3)]

    def test_no_gradients(self) -> None:
        assert ddp_buckets([]) == []

    @pytest.mark.parametrize("total", [1, MIB, MIB + 1, 100 * MIB, 3 * 10**11])
    def test_buckets_of_unknown_gradients_sum_to_the_whole(self, total: int) -> None:
        sizes = even_ddp_buckets(total)
        assert sum(sizes) == total and min(sizes) > 0
        assert sizes[0] <= DDP_FIRST_BUCKET_BYTES
        assert total > 10**11 or max(sizes) <= DDP_BUCKET_BYTES


def test_parts_are_as_equal_as_whole_numbers_can_be() -> None:
    assert spread_evenly(10, 4) == [2, 3, 2, 3] and spread_evenly(0, 3) == [0, 0, 0]
