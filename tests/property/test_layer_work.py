"""Laws of layers' work that hold for every plan and stack."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.models.model import Model
from foretrace.program.kernels import kernels_text, parse_kernels
from foretrace.step.spec import Call, Compute, Work
from foretrace.workload.layers import embedding_work, head_work, layer_work
from foretrace.workload.plan import WORDS
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
