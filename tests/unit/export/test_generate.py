"""AICB workloads from a model and a plan: every row's sizes against the model's own, and against AICB's files."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from foretrace.api import model as model_input
from foretrace.api import simulate
from foretrace.basics.errors import InputError
from foretrace.cost.kernels import kernel_pricer
from foretrace.cost.machine import Machine
from foretrace.cost.sources import PriceSources, kernel_prices
from foretrace.export.aicb import Generated, aicb_workload
from foretrace.export.generate import generate_aicb
from foretrace.hardware.presets import cluster
from foretrace.inputs.aicb.format import WorkloadRow, read_workload
from foretrace.inputs.aicb.options import WorkloadOptions
from foretrace.inputs.aicb.program import lower_workload
from foretrace.inputs.registry import open_input
from foretrace.models.parameters import parameters
from foretrace.models.presets import model
from foretrace.step import build_step
from foretrace.workload.plan import Plan
from foretrace.workload.settle import settle
from foretrace.workload.stacks import stack
from foretrace.workload.step_spec import step_spec
from shared_files import shared

CLUSTER = cluster("h100-dgx")
KERNELS = kernel_pricer(CLUSTER.gpu)

GPT = Plan(gpus=128, tp=8, gbs=128, seq_len=2048)
LLAMA = Plan(gpus=1024, tp=8, pp=16, gbs=128, seq_len=4096)
MIXTRAL = Plan(gpus=128, tp=2, etp=2, ep=8, pp=4, gbs=64, seq_len=4096, routing=1.0)


def generated(name: str, plan: Plan, **how: bool) -> Generated:
    return aicb_workload(settle(model(name), plan), KERNELS, **how)


def layer(made: Generated) -> list[WorkloadRow]:
    """The rows of the first layer."""
    rows = list(made.workload.rows)
    starts = [at for at, row in enumerate(rows) if row.name == "attention_column"]
    return rows[starts[0] : starts[1]]


def named(made: Generated, name: str) -> list[WorkloadRow]:
    return [row for row in made.workload.rows if row.name == name]


def calls(rows: list[WorkloadRow], which: str) -> list[tuple[str, float]]:
    parts = [getattr(row, which) for row in rows]
    return [(one.collective, one.size_bytes) for one in parts if one.collective != "NONE"]


class TestParameters:
    def test_one_rank_holds_the_whole_model(self) -> None:
        made = generated("llama3-8b", Plan(gpus=8))
        assert made.parameters == parameters(model("llama3-8b"))
        (gather,), (reduce,) = named(made, "grad_gather"), named(made, "grad_param_comm")
        assert gather.weight_grad.size_bytes == 2 * made.parameters
        assert reduce.weight_grad.size_bytes == 4 * made.parameters

    def test_the_first_stage_has_the_embedding_and_its_own_layers(self) -> None:
        setting = settle(model("llama3.1-405b"), LLAMA)
        made = aicb_workload(setting, KERNELS)
        # Grouped queries: 8 key/value heads; SwiGLU: three matrices.
        each = 16384 * (2 * 16384 + 2 * 8 * 128) // 8 + 3 * 16384 * 53248 // 8 + 2 * 16384
        assert made.parameters == len(setting.chunks[0]) * each + setting.vocab // 8 * 16384
        assert (len(setting.chunks[0]), made.layers_per_stage) == (7, 8)

    def test_experts_are_reduced_apart(self) -> None:
        made = generated("mixtral-8x7b", MIXTRAL)
        assert made.expert_parameters == 8 * 3 * 4096 * 14336 // 2
        (gather,), (reduce,) = named(made, "moe_grad_norm1"), named(made, "moe_grad_norm2")
        assert (gather.weight_grad.collective, gather.weight_grad.size_bytes) == (
            "ALLGATHER_DP_EP",
            2 * made.expert_parameters,
        )
        assert reduce.weight_grad.size_bytes == 4 * made.expert_parameters

    def test_without_zero_gradients_are_all_reduced(self) -> None:
        made = generated("llama3-8b", Plan(gpus=8, zero=0))
        assert calls(named(made, "grad_param_comm"), "weight_grad") == [("ALLREDUCE", 4 * made.parameters)]
        assert named(made, "grad_gather") == []


class TestRows:
    def test_a_layer_with_sequence_parallelism(self) -> None:
        rows, whole = layer(generated("gpt3-13b", GPT)), 2 * 2048 * 5120
        assert [row.name for row in rows] == [
            "attention_column",
            "attention_column_backward",
            "attention_row",
            "mlp_column",
            "mlp_column_backward",
            "mlp_row",
        ]
        gather, scatter = ("ALLGATHER", whole), ("REDUCESCATTER", whole)
        assert calls(rows, "forward") == [gather, scatter, gather, scatter]
        # Backward, from the last row: the gradient gathered, the input gathered again, the gradient scattered.
        assert calls(rows[::-1], "input_grad") == [gather, gather, scatter, gather, gather, scatter]

    def test_only_what_is_exposed(self) -> None:
        rows, whole = layer(generated("gpt3-13b", GPT, exposed_only=True)), 2 * 2048 * 5120
        assert [row.name for row in rows] == ["attention_column", "attention_row", "mlp_column", "mlp_row"]
        assert calls(rows, "input_grad") == 2 * [("ALLGATHER", whole)]

    def test_a_layer_without_sequence_parallelism(self) -> None:
        rows = layer(generated("gpt3-13b", replace(GPT, sequence_parallel=False)))
        whole = ("ALLREDUCE", 2 * 2048 * 5120)
        assert calls(rows, "forward") == [whole, whole]
        assert calls(rows, "input_grad") == [whole, whole]

    def test_a_mixture_of_experts(self) -> None:
        rows = [row for row in layer(generated("mixtral-8x7b", MIXTRAL)) if row.name == "mlp_moelayer"]
        # Two experts for each of 4,096 tokens, of which a rank of tp has half.
        to_all, gathered = ("ALLTOALL_EP", 2 * 2048 * 4096 * 2), 2 * 4096 * 4096 * 2
        middle = [("ALLGATHER", gathered), ("REDUCESCATTER", gathered)]
        # 8 ranks have counts of 8 experts, in 8 bytes each; a probability has 4 bytes.
        counts, probabilities = ("ALLGATHER_EP", 8 * 8 * 8), ("ALLTOALL_EP", 2 * 2048 * 4)
        assert calls(rows, "forward") == [counts, to_all, probabilities, *middle, to_all]
        assert calls(rows[::-1], "input_grad") == [to_all, *middle, to_all, probabilities]

    def test_recomputation_comes_before_the_backward(self) -> None:
        bare = layer(generated("gpt3-13b", GPT))
        rows = layer(generated("gpt3-13b", replace(GPT, recompute="full")))
        extra = rows[len(bare) :]
        assert {row.name for row in extra} == {"recompute"}
        assert sum(row.input_grad.compute_ns for row in extra) == pytest.approx(
            sum(row.forward.compute_ns for row in bare), abs=len(rows)
        )
        assert Counter(calls(extra, "input_grad")) == Counter(calls(bare, "forward"))
        assert all(row.forward.compute_ns == 0 for row in extra)

    def test_recomputed_modules_come_before_the_backward(self) -> None:
        plan = replace(MIXTRAL, recompute_modules=("moe",))
        bare, rows = layer(generated("mixtral-8x7b", MIXTRAL)), layer(generated("mixtral-8x7b", plan))
        extra = rows[len(bare) :]
        assert {row.name for row in extra} == {"recompute"}
        sent = [call for call in calls(bare, "forward") if call[0] == "ALLTOALL_EP"]
        assert [call for call in calls(extra, "input_grad") if call[0] == "ALLTOALL_EP"] == sent

    def test_gradients_of_inputs_and_weights_are_apart(self) -> None:
        rows = layer(generated("llama3-8b", Plan(gpus=8, tp=2, gbs=32)))
        by_name = {row.name: row for row in rows}
        up, core = by_name["mlp_column"], by_name["attention_row"]
        assert up.weight_grad.compute_ns == pytest.approx(up.input_grad.compute_ns, rel=0.3)
        # Flash attention's backward is an input gradient; only the projection behind it has weights.
        assert core.input_grad.compute_ns > 3 * core.weight_grad.compute_ns > 0

    def test_ends(self) -> None:
        made = generated("llama3.1-405b", LLAMA)
        assert len(named(made, "embedding_layer")) == 16
        assert calls(named(made, "cross_entropy3"), "forward") == 16 * [("ALLREDUCE", 4 * 4096)]
        head = named(made, "final_column")[0]
        assert head.forward.compute_ns > layer(made)[0].forward.compute_ns
        assert made.workload.declared_rows == len(made.workload.rows)

    def test_header(self) -> None:
        header = generated("llama3.1-405b", LLAMA).workload.header
        assert (header.tp, header.ep, header.pp, header.vpp, header.ga) == (8, 1, 16, 1, 16)
        assert (header.all_gpus, header.pp_comm_bytes) == (1024, 2 * 4096 * 16384 // 8)
        assert generated("llama3-8b", Plan(gpus=64, pp=4, vpp=2)).workload.header.vpp == 2


class TestAgainstAicb:
    """The same jobs as AICB wrote them."""

    def test_gpt_13b(self) -> None:
        theirs = read_workload(shared("data", "simai", "workloads", "gpt13b_tp8_aiob.txt"))
        ours = generated("gpt3-13b", GPT)
        first = {row.name: row for row in reversed(theirs.rows)}
        for row in layer(ours):
            if row.name in first:
                assert row.forward.collective == first[row.name].forward.collective
                assert row.forward.size_bytes == first[row.name].forward.size_bytes
        assert first["grad_gather"].weight_grad.size_bytes == 3_495_198_720
        assert named(ours, "grad_gather")[0].weight_grad.size_bytes == 3_235_072_000

    def test_mixtral(self) -> None:
        theirs = read_workload(shared("data", "simai", "workloads", "mixtral8x7b_tp2_ep8_pp4_aiob.txt"))
        made = generated("mixtral-8x7b", MIXTRAL)
        its = [row for row in theirs.rows if row.name == "mlp_moelayer"][:5]
        # AICB gathers token counts over tp, and sends no probabilities; the others are the same.
        ours = calls([row for row in layer(made) if row.name == "mlp_moelayer"], "forward")
        assert [name for name, _ in ours[:1]] == ["ALLGATHER_EP"]
        assert [*ours[1:2], *ours[3:]] == calls(its[1:], "forward")
        moe = next(row for row in theirs.rows if row.name == "moe_grad_norm1")
        assert 2 * made.expert_parameters == 1.5 * moe.weight_grad.size_bytes  # the third matrix of SwiGLU


class TestTime:
    @pytest.mark.parametrize(
        ("name", "plan", "apart"),
        [
            ("llama3-8b", Plan(gpus=8, tp=2, gbs=32), 0.005),
            ("gpt3-13b", Plan(gpus=64, tp=8, pp=2, gbs=64), 0.01),
            ("mixtral-8x7b", Plan(gpus=64, ep=8, gbs=128), 0.02),
            ("llama3.1-405b", LLAMA, 0.06),  # two layers more than there are
        ],
    )
    def test_simulated_as_predicted_where_nothing_overlaps(self, name: str, plan: Plan, apart: float) -> None:
        bare = replace(plan, grad_overlap=False, param_overlap=False)
        visible = replace(stack("megatron-core"), hides_tp_backward=False)
        setting = settle(model(name), bare, visible)
        want = simulate(
            build_step(step_spec(setting)), Machine(CLUSTER, prices=PriceSources(kernels=KERNELS)), explain=False
        ).step_time_s
        made = lower_workload(aicb_workload(setting, KERNELS).workload)
        got = simulate(made, Machine(CLUSTER), explain=False).step_time_s
        assert got == pytest.approx(want, rel=apart)

    def test_zero_bubble_schedules_move_the_weight_gradients(self) -> None:
        plan = Plan(gpus=64, tp=4, pp=4, gbs=64, schedule="zb-h1", grad_overlap=False, param_overlap=False)
        setting = settle(model("llama3-8b"), plan, replace(stack("megatron-core"), hides_tp_backward=False))
        want = simulate(
            build_step(step_spec(setting)), Machine(CLUSTER, prices=PriceSources(kernels=KERNELS)), explain=False
        ).step_time_s
        made = lower_workload(aicb_workload(setting, KERNELS).workload, WorkloadOptions(schedule="zb-h1"))
        assert simulate(made, Machine(CLUSTER), explain=False).step_time_s == pytest.approx(want, rel=0.005)

    def test_exposed_only_is_near_a_plan_that_hides(self) -> None:
        plan = Plan(gpus=64, tp=8, pp=2, gbs=64, grad_overlap=False, param_overlap=False)
        # A file says nothing of kernels, and so nothing of what they lose to collectives beside them.
        want = simulate(
            model_input("gpt3-13b", plan), Machine(CLUSTER, overlap_cost=False, prices="model"), explain=False
        ).step_time_s
        kernels = kernel_prices(CLUSTER, plan.gpus, PriceSources("model"))
        made = aicb_workload(settle(model("gpt3-13b"), plan), kernels, exposed_only=True)
        got = simulate(lower_workload(made.workload), Machine(CLUSTER, prices="model"), explain=False).step_time_s
        assert got == pytest.approx(want, rel=0.05)


class TestWhatAFileCannotSay:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"zero": 3}, "zero 3"),
            ({"zero": 2}, "zero 2"),
            ({"zero": 2, "stack": "fsdp"}, "zero 2"),
            ({"fp8_params": True, "precision": "fp8"}, "8 bits"),
            ({"cp": 2}, "cp 2"),
            ({"rank_order": "tp-cp-dp-ep-pp"}, "rank_order"),
            ({"pp": 4, "schedule": "dualpipe"}, "dualpipe"),
            ({"offload_optimizer": True}, "offloading"),
            ({"offload_layers": 1}, "offloading"),
            ({"offload_modules": ("core_attn",)}, "offloading"),
        ],
    )
    def test_refused(self, change: dict[str, object], words: str) -> None:
        plan = replace(Plan(gpus=16, gbs=64), **change)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=words) as caught:
            generated("llama3-8b", plan)
        assert caught.value.code == "not-expressible"

    def test_experts_beside_tensor_parallelism(self) -> None:
        with pytest.raises(InputError, match="etp 1") as error:
            generated("mixtral-8x7b", replace(MIXTRAL, etp=1))
        assert error.value.hint is not None
        assert "--etp 2" in error.value.hint

    def test_what_is_said_in_part_is_noted(self) -> None:
        found = generated("gpt3-13b", replace(GPT, pp=4, schedule="zb-h1")).diagnostics
        assert {"needs-option", "lossy-format"} <= {one.code for one in found}
        notes = " ".join(one.message for one in found)
        for words in ("--schedule zb-h1", "tied embedding", "--overlap grad,param", "--exposed-only", "of the first"):
            assert words in notes
        assert aicb_workload(settle(model("gpt3-13b"), GPT)).diagnostics[-1].code == "unpriced-op"


class TestStep:
    """What `generate` says of the step of a file."""

    @pytest.mark.parametrize(
        ("name", "plan"),
        [
            ("llama3-8b", Plan(gpus=16, tp=2, pp=2, gbs=32)),
            ("llama3-8b", Plan(gpus=16, tp=2, pp=2, gbs=32, schedule="zb-h1", pp_overlap=True)),
            ("llama3-8b", Plan(gpus=16, tp=2, pp=2, gbs=32, tp_overlap=True, stage_layers=(14, 18))),
            ("deepseek-v2-lite", Plan(gpus=16, pp=2, ep=8, gbs=32)),  # one dense layer, 26 of experts
        ],
    )
    def test_it_is_the_step_of_the_file_and_changes_explain_the_rest(
        self, name: str, plan: Plan, tmp_path: Path
    ) -> None:
        machine = Machine(CLUSTER, prices=PriceSources("model"))
        job = model_input(name, plan)
        made = generate_aicb(job, machine, tmp_path / "job.txt")
        step = made.step
        assert step is not None
        options = {word.partition(" ")[0].lstrip("-"): word.partition(" ")[2] for word in step.options}
        file = simulate(open_input([tmp_path / "job.txt"]).with_options(**options), machine, explain=False)
        assert file.step_time_s == pytest.approx(step.step_time_s, rel=1e-9)
        planned = simulate(job, machine, explain=False, even_if_oom=True).step_time_s
        assert step.planned_step_time_s == pytest.approx(planned, rel=1e-9)
        total = sum(one.seconds for one in step.changes)
        assert total == pytest.approx(step.step_time_s - planned, abs=1e-9)
        assert step.changes[-1].change == "rows of whole nanoseconds" and abs(step.changes[-1].seconds) < 1e-5
        assert list(made.facts["changes"]) == [asdict(one) for one in step.changes]
        overlap = {"overlap": step.overlap, **options}
        again = simulate(open_input([tmp_path / "job.txt"]).with_options(**overlap), machine, explain=False)
        assert again.step_time_s == pytest.approx(step.overlapped_step_time_s, rel=1e-9)

    def test_without_a_cluster_there_is_none(self, tmp_path: Path) -> None:
        job = model_input("llama3-8b", Plan(gpus=16, tp=2, pp=2, gbs=32))
        assert generate_aicb(job, Machine(), tmp_path / "job.txt").step is None
