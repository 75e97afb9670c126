"""Laws of layers' work that hold for every plan and stack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from foretrace.models.model import Model
from foretrace.program.kernels import kernels_text, parse_kernels
from foretrace.step.spec import Call, Compute, Work
from foretrace.workload.layers import embedding_work, head_work, layer_work
from foretrace.workload.plan import WORD_LISTS, WORDS
from foretrace.workload.setting import Setting
from foretrace.workload.stacks import STACKS
from unit.workload.layers.settings import GPT, LLAMA, MIXTURE, flops, kernels, product_flops, setting, talks

PRECISIONS = ["bf16", "fp16", "fp8", "fp8_block", "mxfp8", "nvfp4"]


@st.composite
def plans(draw: st.DrawFn, tps: tuple[int, ...] = (1, 2, 4)) -> Setting:
    """A small model under some plan."""
    model: Model = draw(st.sampled_from([LLAMA, GPT, MIXTURE]))
    return setting(
        model,
        draw(st.sampled_from(sorted(STACKS))),
        draw(st.sampled_from([1024, 2048])),
        draw(st.booleans()),
        mbs=draw(st.integers(1, 3)),
        tp=draw(st.sampled_from(tps)),
        cp=draw(st.sampled_from([1, 2])),
        cp_comm=draw(st.sampled_from(["p2p", "all_gather", "a2a"])),
        ep=draw(st.sampled_from([1, 4])) if model is MIXTURE else 1,
        precision=draw(st.sampled_from(PRECISIONS)),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        dispatcher=draw(st.sampled_from(WORDS["dispatcher"])),
    )


def _layer(of: Setting) -> Work:
    return layer_work(of, of.model.layers[0], 0)


@given(plans(tps=(1,)))
def test_one_tensor_parallel_rank_has_no_such_collectives(of: Setting) -> None:
    for work in (_layer(of), embedding_work(of), head_work(of)):
        assert talks((*work.forward, *work.recompute, *work.backward), "tp") == []


@given(plans())
def test_linear_layers_cost_twice_as_much_backward(of: Setting) -> None:
    work = _layer(of)
    assert abs(product_flops(work.backward) - 2 * product_flops(work.forward)) <= 1e-9 * product_flops(work.backward)


@given(plans(), st.integers(1, 3))
def test_more_tokens_are_never_less_work(of: Setting, more: int) -> None:
    plan = of.plan
    larger = setting(
        of.model,
        of.stack.name,
        of.seq_len,
        of.sequence_parallel,
        mbs=plan.mbs + more,
        tp=plan.tp,
        cp=plan.cp,
        cp_comm=plan.cp_comm,
        ep=plan.ep,
        precision=plan.precision,
        recompute=plan.recompute,
        dispatcher=plan.dispatcher,
    )
    small, large = _layer(of), _layer(larger)
    assert flops(large.forward) > flops(small.forward)
    assert large.saved_bytes > small.saved_bytes
    assert sum(one.bytes for one in talks(large.forward)) >= sum(one.bytes for one in talks(small.forward))


@given(plans())
@settings(max_examples=50)
def test_recompute_keeps_less_and_loses_nothing(of: Setting) -> None:
    plan = of.plan
    same = {"mbs": plan.mbs, "tp": plan.tp, "cp": plan.cp, "ep": plan.ep, "precision": plan.precision}
    none, selective, full = (
        _layer(setting(of.model, of.stack.name, of.seq_len, of.sequence_parallel, recompute=one, **same))
        for one in ("none", "selective", "full")
    )
    assert full.saved_bytes < selective.saved_bytes <= none.saved_bytes
    assert full.saved_bytes + full.recomputed_bytes == none.saved_bytes
    assert flops(selective.recompute) <= flops(full.recompute) <= flops(none.forward)
    assert none.recompute == () and none.recomputed_bytes == 0


@given(plans(), st.sets(st.sampled_from(WORD_LISTS["recompute_modules"])), st.booleans(), st.data())
def test_more_recomputed_modules_never_keep_more(
    of: Setting, modules: set[str], narrow: bool, data: st.DataObject
) -> None:
    assume(of.stack.selective == "core")
    more = data.draw(st.sampled_from(WORD_LISTS["recompute_modules"]))
    # With SwiGLU's input in 8 bits, the checkpoint of the experts' activation keeps it in 16.
    assume(not (narrow and more == "moe_act"))
    fewer_works, works = (
        _layer(replace(of, plan=replace(of.plan, **_recomputing(each), fp8_activation_input=narrow)))
        for each in (modules, modules | {more})
    )
    assert works.saved_bytes <= fewer_works.saved_bytes
    assert works.saved_bytes + works.recomputed_bytes <= fewer_works.saved_bytes + fewer_works.recomputed_bytes
    assert works.recomputed_bytes <= _layer(replace(of, plan=replace(of.plan, **_recomputing(set())))).saved_bytes
    assert flops(works.recompute) >= flops(fewer_works.recompute)
    assert flops(works.recompute) <= flops(works.forward)


def _recomputing(modules: set[str]) -> dict[str, Any]:
    return {"recompute": "selective" if modules else "none", "recompute_modules": tuple(sorted(modules)) or None}


@given(plans(), st.sets(st.sampled_from(WORD_LISTS["offload_modules"])), st.data())
def test_more_offloaded_modules_leave_less_on_the_gpu(of: Setting, modules: set[str], data: st.DataObject) -> None:
    more = modules | {data.draw(st.sampled_from(WORD_LISTS["offload_modules"]))}
    none, some, most = (
        _layer(replace(of, plan=replace(of.plan, offload_modules=tuple(sorted(each)))))
        for each in (set(), modules, more)
    )
    assert 0 == none.offloaded_bytes <= some.offloaded_bytes <= most.offloaded_bytes <= most.saved_bytes
    assert none.saved_bytes == most.saved_bytes


@given(plans())
def test_items_are_well_formed(of: Setting) -> None:
    for work in (_layer(of), embedding_work(of), head_work(of)):
        for items in (work.forward, work.recompute, work.backward):
            for item, following in zip(items, (*items[1:], None), strict=False):
                if isinstance(item, Call):
                    assert item.bytes > 0
                    assert not item.concurrent or isinstance(following, Compute)
            for count, kernel in kernels(items):
                assert count > 0 and kernel.moved_bytes > 0 and kernel.launches > 0
                assert parse_kernels(kernels_text([(count, kernel)])) == ((count, kernel),)
