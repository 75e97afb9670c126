"""The profile of a fairseq MoE step (examples/moe_fairseq_profile.txt): its figures, worked out by hand."""

from __future__ import annotations

import pytest

from foretrace.inputs.profiler_table.format import read_tables
from foretrace.inputs.profiler_table.labels import Label
from foretrace.inputs.torch_ops.kinds import WorkKind
from foretrace.program.columns import Collective, Phase
from foretrace.readings.profiler_table import explain_table
from shared_files import ROOT, shared

PATH = ROOT / "examples/moe_fairseq_profile.txt"
(TABLE,) = read_tables(PATH)
EXPLAINED = explain_table(TABLE)
ROWS = {row.name: row for row in TABLE.rows}
MS = 1e-3


def ms(value: float) -> object:
    """Milliseconds, to the digits the table prints."""
    return pytest.approx(value * MS, abs=0.6e-6)


def test_it_is_the_seed_to_the_byte() -> None:
    assert shared("seeds", "003*").read_bytes() == PATH.read_bytes()


def test_all_rows_and_their_units() -> None:
    assert len(TABLE.rows) == 84 and len({row.name for row in TABLE.rows}) == 84
    assert ROWS["train_step-0"].cpu_total_s == 3.916 and ROWS["cudaLaunchKernel"].self_cpu_s == 3.771
    assert ROWS["cudaMemcpyAsync"].self_cpu_s == pytest.approx(0.547778)
    assert ROWS["cudaPeekAtLastError"].calls == 16
    assert all(row.self_device_s == 0.0 and row.self_device_share == 0.0 for row in TABLE.rows)
    asynchronous = {row.name for row in TABLE.rows if row.asynchronous}
    assert asynchronous == {"nccl:_all_gather_base", "nccl:all_to_all", "nccl:reduce_scatter", "nccl:all_reduce"}


@pytest.mark.parametrize(
    ("name", "calls", "average_ms"),
    [("SelfAttn", 4, 2.720), ("FFNLayer", 2, 1.548), ("MOELayer", 2, 9.203), ("MOEGate", 2, 4.296),
     ("MOEExpert", 2, 2.962), ("MOEmm", 2, 0.826), ("MOECombineExpert", 2, 0.812), ("optimizer", 1, 3.362)],
)  # fmt: skip
def test_the_labels_device_times(name: str, calls: int, average_ms: float) -> None:
    assert ROWS[name].calls == calls
    assert ROWS[name].device_average_s == ms(average_ms)


def test_the_step_is_split_and_nothing_counted_twice() -> None:
    device = EXPLAINED.profile.device
    inside = device.by_kind("label")
    assert sum(inside.values()) == ms(46.271), "the device time of train_step-0"
    assert inside == {
        WorkKind.ATTENTION: ms(10.878),
        WorkKind.OTHER: ms(8.059 + 0.157 + 0.488 + 0.005),
        WorkKind.MOE_GATE: ms(8.593),
        WorkKind.MOE_EXPERT: ms(5.924),
        WorkKind.OPTIMIZER: ms(3.362 + 0.421 + 0.007),
        WorkKind.MOE_DISPATCH: ms(0.456 + 1.652 + 1.624),
        WorkKind.MLP: ms(3.097),
        WorkKind.NORM: ms(0.374 + 0.371 + 0.095),
        WorkKind.ELEMENTWISE: ms(0.123 + 0.162 + 0.154 + 0.031),
        WorkKind.EMBEDDING: ms(0.238),
    }


def test_the_backward_pass_is_in_no_label() -> None:
    device = EXPLAINED.profile.device
    nodes = device.by_kind("autograd node")
    assert sum(nodes.values()) == pytest.approx(51.302 * MS, abs=1e-8)
    assert nodes[WorkKind.GEMM] == ms(18.183 + 9.578 + 4.727)
    assert device.total_s == pytest.approx((46.271 + 51.302) * MS)
    assert device.by_phase() == {
        Phase.FORWARD: ms(41.988),
        Phase.BACKWARD: ms(51.307),
        Phase.OPTIMIZER: ms(3.790),
        Phase.NONE: ms(0.488),
    }
    assert any("in no label" in text for text in EXPLAINED.do_not_add)


def test_what_is_inside_what() -> None:
    def names(label: Label) -> list[str]:
        return [part.name for part in label.parts]

    (step,) = EXPLAINED.profile.device.labels
    forward = next(part for part in step.parts if part.name == "forward")
    layers = next(part for part in forward.parts if part.name == "LAYER_*")
    experts = layers.parts[-1]
    assert step.name == "train_step-0" and names(forward) == ["FORWARD_EMBEDDING", "LAYER_*", "LAYER_NORM"]
    assert (layers.calls, layers.device_s, layers.rest_s) == (4, ms(33.565), 0.0)
    assert names(layers)[:3] == ["SelfAttnLayerNorm", "SelfAttn", "SelfAttnDropOut"] and experts.name == "MOELayer"
    assert {"MOEGate", "MOEExpert", "MOECombineExpert"} < set(names(experts)) and experts.rest_s == ms(0.157)


def test_communication_is_missing_and_not_free() -> None:
    calls = {call.collective: (call.calls, call.device_s) for call in EXPLAINED.profile.calls}
    assert calls == {
        Collective.ALL_GATHER: (2, None),
        Collective.ALL_TO_ALL: (8, None),
        Collective.REDUCE_SCATTER: (1, None),
        Collective.ALL_REDUCE: (4, None),
    }
    assert not EXPLAINED.communication_recorded
    assert any("not recorded" in text for text in EXPLAINED.cannot_tell)


def test_the_first_call_is_start_up() -> None:
    host = EXPLAINED.profile.host
    assert (host.steps, host.start_up_row, host.start_up_s) == (1, "nccl:_all_gather_base", 3.758)
    assert host.work_s == pytest.approx(3.916 - 3.758 - 0.046042)
    assert EXPLAINED.bound == "unknown"
