"""Device time of tables in parts that do not overlap: kernels and ops, artefacts, labels, cut names."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.inputs.profiler_table.communication import communication
from foretrace.inputs.profiler_table.format import Column, Field, ProfilerTable, TableRow, read_tables
from foretrace.inputs.profiler_table.host import count_steps, host_time
from foretrace.inputs.profiler_table.labels import label_tree
from foretrace.inputs.profiler_table.parts import device_time
from foretrace.inputs.profiler_table.rows import RowKind, sort_rows
from foretrace.inputs.torch_ops.kinds import WorkKind
from foretrace.program.columns import Collective, Phase
from foretrace.readings.profiler_table import ExplainedTables, explain_table, explain_tables
from foretrace.report.profiler_table import print_explanations
from shared_files import shared
from table_files import write_times

COLUMNS = tuple(
    Column(heading, field)
    for heading, field in (
        ("Name", Field.NAME),
        ("Self CPU", Field.SELF_CPU),
        ("CPU total", Field.CPU_TOTAL),
        ("Self CUDA", Field.SELF_DEVICE),
        ("CUDA total", Field.DEVICE_TOTAL),
        ("# of Calls", Field.CALLS),
    )
)


def host(name: str, cpu: float = 1.0, own: float = 0.0, total: float | None = None, calls: int = 1) -> TableRow:
    """A row of the host, in milliseconds."""
    device = own if total is None else total
    return TableRow(name, 0, name.endswith("..."), self_cpu_s=cpu / 1e3, cpu_total_s=cpu / 1e3, self_device_s=own / 1e3,
               device_total_s=device / 1e3, calls=calls)  # fmt: skip


def kernel(name: str, own: float, calls: int = 1) -> TableRow:
    """A row of the device, in milliseconds."""
    return TableRow(name, 0, name.endswith("..."), self_cpu_s=0.0, cpu_total_s=0.0, self_device_s=own / 1e3,
               device_total_s=own / 1e3, calls=calls)  # fmt: skip


def table(*rows: TableRow) -> ProfilerTable:
    return ProfilerTable(
        "t.txt", 1, COLUMNS, tuple(TableRow(**{**_facts(row), "line": 4 + n}) for n, row in enumerate(rows)), "CUDA"
    )


def _facts(row: TableRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in TableRow.__slots__}


def kinds(*rows: TableRow) -> list[RowKind]:
    return list(sort_rows(table(*rows)).kinds)


def test_what_rows_are() -> None:
    assert kinds(
        host("aten::mm"),
        kernel("void gemm<float>(int)", 1.0),
        kernel("forward", 1.0),
        host("forward"),
        host("MmBackward0"),
        host("autograd::engine::evaluate_function: MmBackward0"),
        host("cudaLaunchKernel"),
        host("hipLaunchKernel"),
        host("nccl:all_reduce"),
        host("Command Buffer Full"),
        host("torch/nn/modules/module.py(1): __call__"),
        kernel("ProfilerStep#3", 1.0),
    ) == [
        RowKind.OP,
        RowKind.KERNEL,
        RowKind.DEVICE_LABEL,
        RowKind.LABEL,
        RowKind.NODE,
        RowKind.ENGINE,
        RowKind.RUNTIME,
        RowKind.RUNTIME,
        RowKind.COLLECTIVE,
        RowKind.ARTEFACT,
        RowKind.PYTHON,
        RowKind.DEVICE_LABEL,
    ]


def test_kernels_and_the_ops_that_launched_them_are_counted_once() -> None:
    rows = (
        host("aten::linear", total=5.0),
        host("aten::mm", own=5.0),
        host("aten::add", own=1.0),
        host("Command Buffer Full", own=4.0),
        host("forward", total=6.0),
        kernel("nvjet_tst", 5.0),
        kernel("void at::native::vectorized_elementwise_kernel<4>(int)", 1.0),
        kernel("forward", 6.5),
    )
    device = device_time(sort_rows(table(*rows)))
    assert (device.basis, device.agree) == ("kernels", True)
    assert device.total_s == pytest.approx(6e-3) and device.artefacts_s == pytest.approx(4e-3)
    assert device.by_kind() == {WorkKind.GEMM: pytest.approx(5e-3), WorkKind.ELEMENTWISE: pytest.approx(1e-3)}


def test_ops_stand_for_kernels_whose_names_are_cut() -> None:
    rows = (
        host("aten::_fused_adamw_", own=5.0),
        kernel("void at::native::(anonymous namespace)::multi_tensor...", 5.0),
    )
    device = device_time(sort_rows(table(*rows)))
    assert device.basis == "ops" and list(device.by_kind()) == [WorkKind.OPTIMIZER]
    assert device.by_phase() == {Phase.OPTIMIZER: pytest.approx(5e-3)}


def test_kernels_without_ops_are_not_lost() -> None:
    rows = (host("aten::mm", own=1.0), kernel("nvjet_tst", 1.0), kernel("void triton_poi_fused_gelu...", 9.0))
    device = device_time(sort_rows(table(*rows)))
    assert (device.basis, device.agree) == ("kernels", False)
    assert device.total_s == pytest.approx(10e-3)


def test_the_backward_pass_is_what_the_engine_ran() -> None:
    rows = (
        host("aten::mm", own=9.0),
        host("aten::add", own=2.0),
        host("autograd::engine::evaluate_function: MmBackward0", total=6.0),
        host("MmBackward0", total=5.5),
    )
    phases = device_time(sort_rows(table(*rows))).by_phase()
    assert phases == {Phase.FORWARD: pytest.approx(5e-3), Phase.BACKWARD: pytest.approx(6e-3)}


def test_nodes_that_fit_into_the_backward_label_are_inside_it() -> None:
    rows = (host("forward", total=4.0), host("backward", total=8.0), host("MmBackward", total=7.0))
    device = device_time(sort_rows(table(*rows)))
    assert device.basis == "labels" and device.total_s == pytest.approx(12e-3)


def test_only_ops_with_totals() -> None:
    rows = (host("aten::linear", total=5.0), host("aten::addmm", total=5.0), host("aten::relu", total=1.0))
    device = device_time(sort_rows(table(*rows)))
    assert (device.basis, device.total_s) == ("op totals", pytest.approx(6e-3))


def test_labels_of_a_sorted_table_nest_by_what_they_are_called_only() -> None:
    rows = (
        host("train_step-0", cpu=10.0, total=9.0),
        host("forward", cpu=5.0, total=6.0),
        host("optimizer", cpu=2.0, total=3.0),
        host("Optimizer.step#AdamW.step", cpu=1.0, total=2.9),
    )
    (step,) = label_tree(sort_rows(table(*sorted(rows, key=lambda row: -(row.cpu_total_s or 0.0)))))
    assert [part.name for part in step.parts] == ["forward", "optimizer"]
    assert [part.name for part in step.parts[1].parts] == ["Optimizer.step#AdamW.step"]


def test_steps_are_counted_by_the_optimizer_else_by_labels() -> None:
    rows = sort_rows(table(host("Optimizer.step#Adam.step", calls=3), host("train_step-0"), host("aten::mm")))
    assert count_steps(rows, label_tree(rows))[0] == 3
    rows = sort_rows(table(host("train_step-0"), host("train_step-1"), host("aten::mm")))
    assert count_steps(rows, label_tree(rows)) == (2, "calls of train_step-*")
    rows = sort_rows(table(host("aten::mm")))
    assert count_steps(rows, label_tree(rows))[0] == 1


def test_a_step_whose_other_labels_a_row_limit_left_out() -> None:
    rows = sort_rows(table(host("train_step-0", cpu=8.0), host("Optimizer.step#Adam.step", calls=3)))
    assert host_time(rows, label_tree(rows)).work_s == pytest.approx(8e-3)


def test_communication_with_its_kernels_is_recorded() -> None:
    rows = (
        host("nccl:all_reduce", calls=4),
        host("aten::mm", own=2.0),
        kernel("nvjet", 2.0),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)", 3.0, calls=4),
    )
    (call,) = communication(sort_rows(table(*rows)))
    assert (call.collective, call.calls, call.device_s) == (Collective.ALL_REDUCE, 4, pytest.approx(3e-3))
    assert explain_table(table(*rows)).communication_recorded


def test_the_kernel_of_sends_and_receives_is_that_of_all_to_alls_too() -> None:
    sends = kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 8.0, calls=4)
    for names, recorded_s in {
        ("nccl:all_to_all",): [8e-3],
        ("nccl:send", "nccl:recv"): [4e-3, 4e-3],  # by their calls
        ("nccl:all_reduce",): [None],
    }.items():
        found = communication(sort_rows(table(*(host(name, calls=2) for name in names), sends)))
        assert [one.device_s for one in found] == pytest.approx(recorded_s), names
    (alone,) = communication(sort_rows(table(sends)))
    assert alone.collective is Collective.ALL_TO_ALL and alone.device_s == 8e-3


def test_who_holds_a_step_up() -> None:
    step = host("ProfilerStep#1", cpu=8.0)
    assert explain_table(table(step, host("aten::mm", own=20.0))).bound == "device"
    assert explain_table(table(step, host("aten::mm", own=2.0))).bound == "host"
    assert explain_table(table(step, host("aten::mm", own=2.0), host("nccl:all_reduce", cpu=0.1))).bound == "unknown"


def test_the_table_of_an_h200_agrees_with_its_trace() -> None:
    """Sums over the kernels of tinyllama_mbs4.json.gz by kind, in milliseconds."""
    (one,) = explain_tables(read_tables(shared("data", "h200", "tinyllama_mbs4.table.txt")))
    device = one.profile.device
    of_trace = {"gemm": 132.889, "elementwise": 51.853, "attention": 35.987, "copy": 14.984, "optimizer": 11.758,
                "norm": 8.482, "loss": 3.929, "memset": 1.084, "embedding": 0.521, "indexing": 0.183}  # fmt: skip
    assert sum(of_trace.values()) == pytest.approx(261.670)
    assert device.total_s == pytest.approx(0.261670, rel=1e-4)
    assert device.kernels_s == pytest.approx(device.ops_s, rel=1e-4) and one.bound == "device"
    by_kind = device.by_kind()
    for kind, milliseconds in of_trace.items():
        assert by_kind[WorkKind(kind)] * 1e3 == pytest.approx(milliseconds, rel=0.01, abs=0.01 * 261.67), kind
    assert device.by_phase()[Phase.FORWARD] == pytest.approx(86.452e-3, rel=0.001), "CUDA total of forward"


def test_many_rows_of_one_collective_share_its_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("ProfilerStep*", 1e-4, 2e-2, 0.0, 1e-2)]
    rows += [(f"nccl:all_reduce_{number}", 0.0, 1e-6, 0.0, 0.0) for number in range(3_000)]
    rows.append(("ncclDevKernel_AllReduce_Sum_bf16", 0.0, 0.0, 6e-3, 6e-3))
    (table,) = read_tables(write_times(tmp_path / "table.txt", rows))
    explanations = explain_tables([table])
    calls = explanations[0].profile.calls
    assert len(calls) == 3_000
    assert sum(call.device_s or 0.0 for call in calls) == pytest.approx(6e-3)
    print_explanations(ExplainedTables(explanations, "table.txt"))
    assert len(capsys.readouterr().out.splitlines()) < 200
