"""A profiler table as a job: its own step, and the same computation on another mesh."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import foretrace
from foretrace.basics.errors import InputError, UsageError
from foretrace.cost.machine import Machine
from foretrace.cost.sources import PriceSources
from foretrace.inputs.profiler_table.format import Column, Field, ProfilerTable, TableRow
from foretrace.program.columns import Collective
from foretrace.program.expand import expand
from foretrace.program.program import Program
from opened import program_of
from shared_files import ROOT, shared
from table_files import write_times
from write_table import write_table

FAIRSEQ = ROOT / "examples/moe_fairseq_profile.txt"
SIZES = (("moe.tokens", "8192"), ("moe.hidden", "2048"), ("params", "2.5e8"))


def lowered(mesh: str, *more: tuple[str, str], base: tuple[tuple[str, str], ...] = SIZES) -> Program:
    return program_of(FAIRSEQ, mesh=mesh, sizes=(*base, *more))


def calls(program: Program) -> list[tuple[Collective, str, int]]:
    """The collectives of a step in order, with the axis and the bytes of each."""
    ops = expand(program)
    kind, where, size = ops.ints("collective"), ops.ints("communicator"), ops.ints("bytes")
    return [
        (Collective(int(kind[n])), program.communicators[int(where[n])].name, int(size[n]))
        for n in np.flatnonzero(where >= 0)
    ]


def words(program: Program) -> str:
    return "\n".join(note.message for note in program.diagnostics)


def test_its_own_step_is_the_devices_time_and_says_what_is_missing() -> None:
    program = program_of(FAIRSEQ)
    answer = foretrace.simulate(program)
    assert answer.step_time_s == pytest.approx(97.573e-3)
    assert program.world == 1 and "communication is missing (nccl:_all_gather_base ×2, nccl:all_to_all ×8" in words(
        program
    )
    assert "3.76 s of start-up" in words(program)


def test_what_a_mesh_sends_and_where_in_the_step() -> None:
    found = calls(lowered("dp=8,ep=8"))
    token_bytes, parameter_bytes = 8192 * 2 * 2048 * 2, 2 * 250_000_000
    gather = (Collective.ALL_GATHER, "dp", parameter_bytes)
    exchange = (Collective.ALL_TO_ALL, "ep", token_bytes)
    scatter, reduce = (Collective.REDUCE_SCATTER, "dp", parameter_bytes), (Collective.ALL_REDUCE, "dp", 8)
    assert found == [gather, *[exchange] * 4, gather, *[exchange] * 4, scatter, *[reduce] * 4]


@pytest.mark.parametrize(("mesh", "gpus"), [("dp=8,ep=8", 8), ("dp=64,ep=8", 64), ("dp=64,ep=64", 64)])
def test_on_8_and_on_64_gpus(mesh: str, gpus: int) -> None:
    program = lowered(mesh)
    answer = foretrace.simulate(program, Machine("h100-dgx", prices=PriceSources(silicon=False)))
    assert (program.world, answer.world_size) == (gpus, gpus)
    parts = answer.breakdown.mean_s
    assert parts["compute"] + parts["optimizer"] == pytest.approx(97.573e-3)
    assert parts["ep exposed"] > 0 and parts["dp exposed"] > 0
    assert answer.step_time_s == pytest.approx(sum(parts.values()))
    warned = {one.code for one in program.diagnostics if one.level == "warning"}
    assert {"as-recorded", "assumed"} <= warned


def test_larger_groups_take_longer() -> None:
    steps = [foretrace.simulate(lowered(mesh), Machine("h100-dgx", prices=PriceSources(silicon=False))).step_time_s
             for mesh in ("dp=8,ep=8", "dp=64,ep=8", "dp=64,ep=64")]  # fmt: skip
    assert steps == sorted(steps) and steps[0] < steps[2]


def test_bytes_given_outright() -> None:
    program = lowered(
        "dp=8,ep=8", ("all_to_all.bytes", "16MiB"), ("all_gather.bytes", "1e6"), ("all_reduce.bytes", "64")
    )
    sizes = {(one, size) for one, _, size in calls(program)}
    assert sizes == {
        (Collective.ALL_TO_ALL, 16 << 20),
        (Collective.ALL_GATHER, 10**6),
        (Collective.REDUCE_SCATTER, 5 * 10**8),
        (Collective.ALL_REDUCE, 64),
    }
    assert "not used here: --set moe.tokens, moe.hidden" in words(program)


def test_sharded_groups_and_copies_of_experts() -> None:
    found = calls(lowered("dp=64,ep=8,shard=8", ("moe.params", "1e8"), ("dtype", "fp32")))
    assert (Collective.ALL_REDUCE, "replicate", 4 * 250_000_000 // 8) in found
    assert (Collective.ALL_REDUCE, "edp", 4 * 10**8) in found
    assert (Collective.ALL_GATHER, "shard", 10**9) in found
    assert "gradients of experts over their 8 copies are left out" in words(lowered("dp=64,ep=8"))


def test_the_sizes_of_a_model() -> None:
    program = lowered("dp=8,ep=8", base=(("model", "mixtral-8x7b"), ("moe.tokens", "4096")))
    sizes = {one: size for one, _, size in calls(program)}
    assert sizes[Collective.ALL_TO_ALL] == 4096 * 2 * 4096 * 2
    assert 1e9 < sizes[Collective.ALL_GATHER] < 5e9, "all but the experts"


class TestErrors:
    def refused(self, **options: object) -> InputError:
        with pytest.raises(InputError) as caught:
            program_of(FAIRSEQ, **options)
        return caught.value

    def test_sizes_that_are_missing_are_named_with_a_command_that_works(self) -> None:
        error = self.refused(mesh="dp=8,ep=8", sizes=(("moe.tokens", "4096"),))
        assert "nccl:all_to_all ×8" in error.message
        for name in ("moe.hidden", "params"):
            assert f"{name} (" in error.message
        assert error.hint is not None
        command = error.hint.removeprefix("for example: ").split()
        assert command[:2] == ["foretrace", "simulate"] and "moe.tokens=4096" in command
        sizes = tuple(tuple(word.split("=")) for word in command if "=" in word and word[:2] not in ("dp", "--"))
        assert program_of(command[2], mesh="dp=8,ep=8", sizes=sizes).world == 8

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [("moe.tokns", "1", "did you mean moe.tokens"), ("moe.tokens", "many", "does not start with a number"),
         ("moe.tokens", "0", "is 0"), ("dtype", "bf61", "not known"), ("params", "1GiB", "unknown unit"),
         ("all_to_all.bytes", "16 apples", "unknown unit"), ("model", "gpt9", "")],
    )  # fmt: skip
    def test_sizes_that_are_none(self, name: str, value: str, said: str) -> None:
        assert said in self.refused(mesh="dp=8,ep=8", sizes=((name, value),)).message

    def test_axes_that_would_change_the_computation(self) -> None:
        assert "tp and pp" in self.refused(mesh="tp=2,pp=2,dp=2").message

    def test_sizes_without_a_mesh(self) -> None:
        error = self.refused(sizes=SIZES)
        assert error.hint is not None and "--mesh" in error.hint

    @pytest.mark.parametrize("options", [{"schedule": "1f1b"}, {"microbatches": 4}, {"gpus": 8}])
    def test_options_a_table_does_not_have(self, options: dict[str, object]) -> None:
        with pytest.raises(UsageError) as caught:
            program_of(FAIRSEQ, **options)
        assert caught.value.code == "option-not-for-input"
        assert caught.value.hint is not None and "--mesh" in caught.value.hint

    def test_a_host_a_table_cannot_have(self) -> None:
        assert self.refused(host="graphs").code == "cannot-change"

    def test_a_table_of_the_host_only(self, tmp_path: Path) -> None:
        columns = (Column("Name", Field.NAME), Column("CPU total", Field.CPU_TOTAL), Column("# of Calls", Field.CALLS))
        table = ProfilerTable("t", 1, columns, (TableRow("aten::mm", 1, cpu_total_s=1.0, calls=1),))
        (tmp_path / "t.txt").write_text(write_table(table), encoding="utf-8")
        with pytest.raises(InputError) as caught:
            program_of(tmp_path / "t.txt")
        assert caught.value.code == "nothing-to-do"


def test_a_step_the_device_bounds_is_its_time_and_one_the_host_bounds_the_hosts(tmp_path: Path) -> None:
    def step(device_ms: float) -> float:
        device_s = device_ms / 1e3
        times = (("ProfilerStep*", 0.01, 0.02, 0.0, 0.0), ("aten::mm", 0.01, 0.01, device_s, device_s))
        write_times(tmp_path / "t.txt", times, calls=2)
        return foretrace.simulate(program_of(tmp_path / "t.txt")).step_time_s

    assert step(30.0) == pytest.approx(0.015), "two steps, of 15 ms each on the device and 10 ms on the host"
    assert step(4.0) == pytest.approx(0.010), "the host's"


def test_the_step_of_an_h200_as_its_table_has_it() -> None:
    program = program_of(shared("data", "h200", "tinyllama_mbs4.table.txt"))
    step = foretrace.simulate(program).step_time_s
    assert step == pytest.approx(0.134043, rel=0.03), "unprofiled; gaps between kernels are not in a table"
    assert "the table holds 2 steps" in words(program)


@pytest.fixture
def of_one_gpu(tmp_path: Path) -> Path:
    """Two steps of one GPU: 20 ms forward, 40 ms backward and 5 ms of an optimizer each, and 10 ms of the host."""
    times = (
        ("ProfilerStep*", 0.01, 0.02, 0.0, 0.13),
        ("aten::mm", 0.005, 0.005, 0.12, 0.12),
        ("autograd::engine::evaluate_function: MmBackward0", 0.002, 0.004, 0.0, 0.08),
        ("aten::_fused_adamw_", 0.001, 0.001, 0.01, 0.01),
    )
    return write_times(tmp_path / "one.txt", times, calls=2)


class TestWithoutCommunication:
    """A table of one GPU: on more, gradients are reduced as DistributedDataParallel does."""

    def lowered(self, path: Path, mesh: str, *sizes: tuple[str, str]) -> Program:
        return program_of(path, mesh=mesh, sizes=sizes)

    def step_s(self, path: Path, *sizes: tuple[str, str]) -> float:
        return foretrace.simulate(
            self.lowered(path, "dp=64", *sizes), Machine("h100-dgx", prices=PriceSources(silicon=False))
        ).step_time_s

    def test_gradients_are_reduced_in_buckets(self, of_one_gpu: Path) -> None:
        found = calls(self.lowered(of_one_gpu, "dp=64", ("params", "1.1e9")))
        assert {(one, over) for one, over, _ in found} == {(Collective.ALL_REDUCE, "dp")}
        sizes = [size for _, _, size in found]
        assert sum(sizes) == 2 * 1_100_000_000
        assert sizes[:2] == [1 << 20, 25 << 20] and max(sizes) == 25 << 20 and len(sizes) == 85

    def test_under_the_backward_or_after_it(self, of_one_gpu: Path) -> None:
        alone = foretrace.simulate(self.lowered(of_one_gpu, "dp=1")).step_time_s
        assert alone == pytest.approx(65e-3)
        after = self.lowered(of_one_gpu, "dp=64", ("params", "1e9"), ("overlap", "none"))
        under = self.lowered(of_one_gpu, "dp=64", ("params", "1e9"))
        assert "under the backward" in words(under) and "after the backward" in words(after)
        exposed = {}
        for name, program in (("under", under), ("after", after)):
            answer = foretrace.simulate(program, Machine("h100-dgx", prices=PriceSources(silicon=False)))
            parts = answer.breakdown.mean_s
            assert parts["compute"] + parts["optimizer"] == pytest.approx(alone)
            exposed[name] = parts["dp exposed"]
        assert exposed["after"] > 20e-3, "2 GB over the network"
        assert 0 < exposed["under"] < exposed["after"] / 40, "the last bucket is what is left when the backward ends"

    def test_gradients_come_evenly_over_the_backward_and_each_waits_for_its_own(self, of_one_gpu: Path) -> None:
        """Where they take longer than the backward pass, the step has all of their time but the first bucket's wait."""
        reduced = self.step_s(of_one_gpu, ("params", "1e10"), ("overlap", "none")) - 65e-3
        assert self.step_s(of_one_gpu, ("params", "1e10")) == pytest.approx(25e-3 + reduced, rel=0.01)

    def test_a_model_s_parameters(self, of_one_gpu: Path) -> None:
        program = self.lowered(of_one_gpu, "dp=64", ("model", "tinyllama"))
        assert sum(size for _, _, size in calls(program)) == 2 * 1_100_048_384
        assert "not used here" not in words(program) and "parameters of tinyllama, bf16" in words(program)

    def test_nothing_said_is_an_error_that_says_what_to_set(self, of_one_gpu: Path) -> None:
        with pytest.raises(InputError) as caught:
            self.lowered(of_one_gpu, "dp=64")
        assert caught.value.code == "not-recorded"
        assert "set params" in caught.value.message and "model=NAME" in caught.value.message
        assert caught.value.hint is not None and "--set params=" in caught.value.hint

    def test_only_what_was_typed_is_called_unused(self, of_one_gpu: Path) -> None:
        program = self.lowered(of_one_gpu, "dp=64", ("params", "1e9"), ("model", "tinyllama"), ("moe.tokens", "8"))
        assert "not used here: --set model, moe.tokens" in words(program)

    def test_an_overlap_that_is_none(self, of_one_gpu: Path) -> None:
        with pytest.raises(InputError) as caught:
            self.lowered(of_one_gpu, "dp=64", ("params", "1e9"), ("overlap", "maybe"))
        assert caught.value.code == "unknown-name"

    def test_inference_has_no_gradients(self, tmp_path: Path) -> None:
        columns = (Column("Name", Field.NAME), Column("Self CPU", Field.SELF_CPU), Column("CPU total", Field.CPU_TOTAL),
                   Column("Self CUDA", Field.SELF_DEVICE), Column("# of Calls", Field.CALLS))  # fmt: skip
        row = TableRow("aten::mm", 1, self_cpu_s=0.01, cpu_total_s=0.01, self_device_s=0.02, calls=2)
        (tmp_path / "t.txt").write_text(write_table(ProfilerTable("t", 1, columns, (row,), "CUDA")), encoding="utf-8")
        program = program_of(tmp_path / "t.txt", mesh="dp=8")
        assert calls(program) == [] and "no backward pass" in words(program)

    def test_experts_need_replicas(self) -> None:
        with pytest.raises(InputError) as caught:
            program_of(FAIRSEQ, mesh="ep=8")
        assert caught.value.hint is not None and caught.value.hint.endswith("--mesh dp=8,ep=8")


def test_kinds_of_work_are_among_the_gains() -> None:
    answer = foretrace.simulate(program_of(FAIRSEQ))
    assert answer.gains is not None
    found = {one.name: one.gain_if_free_s for one in answer.gains}
    assert found["gemm"] == pytest.approx(32.5e-3, rel=0.01) and found["moe gate"] == pytest.approx(8.59e-3, rel=0.01)


def test_calls_that_cannot_be_run_are_not_built(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    lines = FAIRSEQ.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if "nccl:reduce_scatter" in line or "reduce_scatter" in line)
    head, _, _ = lines[at].rstrip().rpartition(" ")
    lines[at] = f"{head} 99999999  "
    path.write_text("\n".join(lines))
    with pytest.raises(InputError) as caught:
        program_of(path, mesh="dp=8,ep=8", sizes=SIZES)
    assert (caught.value.code, caught.value.where) == ("too-large", f"{path}:{at + 1}")


@pytest.mark.parametrize("kept", [1.0, 0.5])
def test_rows_that_the_totals_below_the_table_miss_are_told(tmp_path: Path, kept: float) -> None:
    lines = shared("data/h200/tinyllama_mbs4.table.txt").read_text().splitlines(keepends=True)
    path = tmp_path / "table.txt"
    path.write_text("".join([*lines[: int(kept * len(lines)) - 3], *lines[-3:]]))
    codes = {note.code for note in program_of(path).diagnostics if note.level == "warning"}
    assert ("not-recorded" in codes) is (kept < 1)
