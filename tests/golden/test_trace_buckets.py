"""Gradient buckets that are reduced beside the last backward (`ddp_grad_comm`), worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foretrace.cost.pricing import STREAM_SHARE
from foretrace.inputs.megatron_trace.format import Facts, parse_line
from foretrace.inputs.megatron_trace.whole_job.corrections import HOST_GAP_S
from foretrace.program.columns import Collective
from golden.test_trace_ex_situ import MS, price_s
from unit.inputs.megatron_trace.rank_files import Rank, answer, said, write

G = HOST_GAP_S
SIZE = 4_000_000
SCALE = 2 * SIZE / (1e12 * STREAM_SHARE)


def rank_with_buckets(rank: int, *, ex_situ: bool = True, semantics: str = "metadata_placeholder") -> Rank:
    """Forward 10, backward 20 in which two buckets of 4 MB are launched after 5 and 15, a reduction that is none,
    optimizer 5."""
    one = Rank(rank, ex_situ=ex_situ).op("forward_step", 10)
    for number, after in enumerate((5.0, 15.0)):
        launched = one.now_ms + after
        line = (
            f"rank:{rank}:ddp_grad_comm(comm_uid=c{number},iter=9,stage_id=0,mg_state=steady,group_kind=dp,"
            f"comm_func=allreduce,buffer_id=0,bucket_id={number},bucket_numel=1000000,trigger_op=backward_step,"
            f"launch_timestamp_ms={launched},launch_source=param_hook,status=launch_only,grad_dtype=torch.float32,"
            f"duration=0,timestamp={launched},sub_operations=[])"
        )
        one.ops.append(parse_line(line, line=len(one.ops) + 1))
    one.op("backward_step", 20)
    placeholder = (
        f"rank:{rank}:dp_allreduce(stage_id=0,batch_id=0,mg_state=finalize,duration=0.5,description=None,group_kind=dp,"
        f"cmd_uid=u1,op_semantics={semantics},finalize_base_duration_ms=0.01,input__shape=[2000000],"
        f"input__dtype=torch.float32,timestamp={one.now_ms + 0.5},sub_operations=[])"
    )
    one.ops.append(parse_line(placeholder, line=len(one.ops) + 1))
    return one.gap(0.5).op("optimizer_step", 5)


def test_buckets_run_beside_the_last_backward(tmp_path: Path) -> None:
    """Each bucket is scaled (read and written) and then reduced beside what is left of the backward. Two microbatches:
    only the last backward has them.

        10 g | 20 g | 10 g | 5 scale 10 scale 5 g | 5      and nothing of the reductions shows
    """
    ranks = [rank_with_buckets(rank) for rank in range(2)]
    folder = write(tmp_path / "scaling", ranks, Facts(world=2, tp=1, pp=1, layers=1))
    expected = 2 * (10 * MS + G) + 2 * (20 * MS + G) + 2 * SCALE + 5 * MS
    assert answer(folder, microbatches=2).step_time_s == pytest.approx(expected, abs=1e-9)


def test_the_optimizer_waits_for_buckets(tmp_path: Path) -> None:
    """A thousand times as slow, both are still under way when the backward ends: one after the other on their
    communicator, from the launch of the first on."""
    ranks = [rank_with_buckets(rank) for rank in range(2)]
    folder = write(tmp_path / "scaling", ranks, Facts(world=2, tp=1, pp=1, layers=1))
    reduction = 1000 * price_s(Collective.ALL_REDUCE, [0, 1], SIZE, 2)
    assert reduction > 20 * MS
    expected = 10 * MS + G + 5 * MS + SCALE + 2 * reduction + 5 * MS
    assert answer(folder, {"dp": 0.001}, microbatches=1).step_time_s == pytest.approx(expected, abs=1e-9)


def test_a_real_wait_for_buckets_is_taken_as_recorded(tmp_path: Path) -> None:
    ranks = [rank_with_buckets(rank, ex_situ=False, semantics="wait_flush_only") for rank in range(2)]
    found = answer(write(tmp_path / "real", ranks, Facts(world=2, tp=1, pp=1, layers=1)))
    assert found.step_time_s == pytest.approx(35.5 * MS, abs=1e-9)
    assert "4 gradient buckets, of which only the launch was traced" in said(found)


def test_buckets_written_after_the_last_backward_are_launched_at_its_end(tmp_path: Path) -> None:
    """Scaled one after the other, reduced one after the other from the end of the first scaling on; the optimizer
    waits.

    10 g | 20 scale scale g | 5
                  | reduce reduce |
    """
    ranks = [rank_with_buckets(rank) for rank in range(2)]
    for one in ranks:
        buckets, backward = one.ops[1:3], one.ops[3]
        late = [replace(bucket, text=bucket.text | {"launch_timestamp_ms": "1e9"}) for bucket in buckets]
        one.ops[1:4] = [backward, *late]
    folder = write(tmp_path / "scaling", ranks, Facts(world=2, tp=1, pp=1, layers=1))
    reduction = price_s(Collective.ALL_REDUCE, [0, 1], SIZE, 2)
    computed = 10 * MS + G + 20 * MS
    ready = max(computed + 2 * SCALE + G, max(computed + 2 * SCALE, computed + SCALE + reduction) + reduction)
    assert answer(folder, microbatches=1).step_time_s == pytest.approx(ready + 5 * MS, abs=1e-9)
