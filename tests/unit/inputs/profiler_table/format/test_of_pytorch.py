"""Tables that the installed PyTorch writes, in every option, with what its own records say beside them."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest

from foretrace.inputs.profiler_table.format import ProfilerTable, TableRow, parse_tables

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch")
    from torch.autograd import DeviceType
    from torch.autograd.profiler_util import EventList, FunctionEventAvg
    from torch.profiler import ProfilerActivity, profile, record_function

pytestmark = pytest.mark.filterwarnings("ignore")

OPTIONS: list[dict[str, Any]] = [
    {},
    {"sort_by": "cpu_time_total"},
    {"sort_by": "self_cpu_time_total", "row_limit": 5},
    {"header": "a title"},
    {"header": "a title", "top_level_events_only": True},
    {"max_name_column_width": 20},
    {"max_name_column_width": None, "row_limit": -1},
    {"max_src_column_width": 20, "max_shapes_column_width": 15},
    {"time_unit": "s"},
    {"time_unit": "ms"},
    {"time_unit": "us"},
]


def the_table(text: str) -> ProfilerTable:
    (table,) = parse_tables(f"before\n{text}after\n", "t.txt")
    return table


def train() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters())
    with record_function("train_step-0"):
        model(torch.randn(8, 16)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("switches", list(itertools.product([False, True], repeat=4)))
def test_every_option(switches: tuple[bool, bool, bool, bool]) -> None:
    shapes, memory, flops, stack = switches
    verbose = torch._C._profiler._ExperimentalConfig(verbose=True) if stack else None
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=shapes,
        profile_memory=memory,
        with_flops=flops,
        with_stack=stack,
        experimental_config=verbose,
    ) as profiler:
        train()
    groupings: list[dict[str, Any]] = [{}, {"group_by_input_shape": True}]
    groupings += [{"group_by_stack_n": 3}] if stack else []
    for grouping in groupings:
        events = profiler.key_averages(**grouping)
        for options in OPTIONS:
            table = the_table(events.table(**options))
            _check(table, events, options)
            assert (table.title == "a title") == ("header" in options)
            assert table.top_level_only == ("top_level_events_only" in options)


def _check(table: ProfilerTable, events: Any, options: dict[str, Any]) -> None:
    """What was read against PyTorch's own records, to the digits it prints."""
    limit = options.get("row_limit", 100)
    if "top_level_events_only" not in options:
        assert len(table.rows) == (len(events) if limit < 0 else min(limit, len(events)))
    whole = options.get("max_name_column_width", 55) is None
    for row in table.rows if whole else ():
        same = [one.self_cpu_time_total / 1e6 for one in events if (one.key, one.count) == (row.name, row.calls)]
        assert any(row.self_cpu_s == pytest.approx(one, rel=5.1e-4, abs=1e-9) for one in same), row
    assert table.self_cpu_total_s == pytest.approx(events.self_cpu_time_total / 1e6, rel=2e-3, abs=5.1e-4)


def event(key: str, **facts: Any) -> Any:
    one = FunctionEventAvg()
    one.key, one.count, one.node_id, one.is_async, one.is_remote, one.is_legacy = key, 1, -1, False, False, False
    one.use_device, one.device_type, one.input_shapes, one.stack, one.overload_name = "cuda", DeviceType.CPU, [], [], ""
    one.is_user_annotation = False
    for name, value in facts.items():
        setattr(one, name, value)
    return one


def written(events: list[Any], device: str, **options: Any) -> ProfilerTable:
    for one in events:
        one.use_device = device
    switches = {name: options.pop(name) for name in ("profile_memory", "with_flops") if name in options}
    return the_table(EventList(events, use_device=device, **switches).table(**options))


@pytest.mark.parametrize("device", ["cuda", "xpu", "hpu", "mtia", "privateuseone"])
def test_times_and_memory_of_a_device(device: str) -> None:
    kernel = {"self_device_time_total": 1234.5, "device_time_total": 1234.5, "device_type": DeviceType.CUDA, "count": 3}
    op = {
        "self_cpu_time_total": 2.5e6,
        "cpu_time_total": 2.5e6,
        "device_time_total": 1234.5,
        "device_memory_usage": 3 << 20,
    }
    collective = {"cpu_time_total": 17.0, "is_async": True, "cpu_memory_usage": -12288, "self_device_memory_usage": 7}
    events = [event("void gemm<float>(int)", **kernel), event("aten::mm", **op), event("nccl:all_reduce", **collective)]
    table = written(events, device, profile_memory=True)
    gemm, product, reduce = table.rows
    assert table.device == device.upper()
    assert (gemm.self_device_s, gemm.device_average_s, gemm.calls) == (
        pytest.approx(1.234e-3, rel=1e-3),
        pytest.approx(411.5e-6),
        3,
    )
    assert (product.cpu_total_s, product.device_memory_bytes) == (2.5, 3 << 20)
    assert (reduce.asynchronous, reduce.cpu_total_s, reduce.cpu_memory_bytes) == (True, pytest.approx(17e-6), -12288)
    assert reduce.self_device_memory_bytes == 7
    assert table.self_device_total_s == pytest.approx(1.234e-3, rel=1e-3)


def test_overloads_nodes_shapes_flops_and_stacks_at_once() -> None:
    facts = {"self_cpu_time_total": 10.0, "cpu_time_total": 10.0}
    events = [
        event("aten::add", **facts, overload_name="Tensor", node_id=2, input_shapes=[[4, 8], [8]], flops=3_000_000,
              stack=["a.py(1): f", "b.py(2): g"]),
        event("aten::t", **facts, input_shapes=[[4] * 60], flops=0, stack=[]),
        event("aten::mul", **facts, flops=12_500_000, stack=["/a/very/long/path/to/a/file.py(123): forward"]),
    ]  # fmt: skip
    table = written(events, "cuda", with_flops=True, max_src_column_width=20)
    add, transpose, multiply = table.rows
    assert (add.overload, add.node, add.shapes, add.flops) == ("Tensor", 2, "[[4, 8], [8]]", pytest.approx(3e6))
    assert add.stack == ("a.py(1): f", "b.py(2): g")
    assert transpose.flops is None and transpose.stack == () and transpose.shapes.endswith("4, 4,"), "cut"
    assert multiply.flops == pytest.approx(12.5e6) and multiply.stack[0].endswith("(123): forward")
    assert any(note.code == "repaired-input" for note in table.diagnostics), (
        "the headings are the wrong way round, and it is said"
    )


def test_nothing_took_any_time() -> None:
    (row,) = written([event("aten::t")], "cuda").rows
    assert isinstance(row, TableRow) and row.self_cpu_share is None and row.self_cpu_s == 0.0
