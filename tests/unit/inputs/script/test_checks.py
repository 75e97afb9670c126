"""Recordings that cannot be right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.profiler_trace.format.records import Inputs
from foretrace.inputs.script.checks import check_recordings
from foretrace.inputs.script.recording import RankRecording, Signature, TensorShape
from foretrace.program.columns import Category, Collective, Phase
from script_recordings import BF16, Script, group

DP2 = group("dp", (0, 1))


def product(op: str, m: int, n: int, k: int) -> Signature:
    """A product of row-major matrices."""
    bias, types, strides = (((n,),), (BF16,), ((1,),)) if op == "aten::addmm" else ((), (), ())
    dims = (*bias, (m, k), (k, n))
    inputs = Inputs(dims, (*types, BF16, BF16), ("",) * len(dims), (*strides, (k, 1), (n, 1)))
    return Signature(op, inputs, (TensorShape((m, n), BF16, (n, 1)),))


def model(layers: int = 4, *, backward_products: int = 2) -> Script:
    """Linear layers of 64 x 64 for 32 tokens, with their backward and an optimizer."""
    script = Script()
    for _ in range(layers):
        script.launch(product("aten::addmm", 32, 64, 64))
    script.phase = Phase.BACKWARD
    for _ in range(layers):
        for _ in range(backward_products):
            script.launch(product("aten::mm", 32, 64, 64))
    script.phase = Phase.OPTIMIZER
    script.launch("aten::add")
    return script


def recorded(script: Script, parameters: int = 4 * 64 * 64, tokens: int = 32) -> RankRecording:
    """A recording that states its parameters and tokens."""
    return replace(script.recording(), parameters=parameters, whole_parameters=parameters, tokens=tokens)


def codes(*recordings: RankRecording) -> list[str]:
    """The codes of the warnings."""
    return [warning.code for warning in check_recordings(recordings)]


def failure(*recordings: RankRecording) -> InputError:
    """The error."""
    with pytest.raises(InputError) as error:
        check_recordings(recordings)
    return error.value


def test_a_model_that_is_right() -> None:
    assert codes(recorded(model())) == []


def test_a_forward_and_an_optimizer_need_a_backward() -> None:
    script = Script()
    script.launch("aten::relu")
    assert check_recordings([script.recording()]) == []
    script.phase = Phase.OPTIMIZER
    script.launch("aten::add")
    assert failure(script.recording()).code == "missing-backward"


def test_a_call_that_nothing_waits_for() -> None:
    script = Script(3, 4, [group("dp", (2, 3), (0, 1))])
    script.modules, script.module = ["layers.0.attention"], 0
    call = script.call(Collective.ALL_REDUCE)
    error = failure(script.recording())
    assert (error.code, error.where) == ("call-not-awaited", "rank 3, module layers.0.attention")
    script.wait(call)
    script.wait(call)
    assert codes(script.recording()) == []


def test_a_synchronized_device_has_waited_for_all_calls() -> None:
    script = Script(0, 2, [DP2])
    script.call(Collective.ALL_REDUCE)
    script.synchronize()
    assert codes(script.recording()) == []


def test_calls_may_be_awaited_in_the_next_step() -> None:
    script = Script(0, 2, [DP2])
    for _ in range(2):
        script.wait(script.steps[-1][1] - 1 if script.steps else -1)
        script.call(Collective.ALL_GATHER)
        script.end_step()
    assert codes(script.recording()) == []


def test_a_forward_without_its_layers() -> None:
    assert codes(recorded(model(), parameters=20 * 64 * 64)) == ["implausible-flops"]


@pytest.mark.parametrize(("products", "expected"), [(1, ["implausible-flops"]), (2, []), (4, ["implausible-flops"])])
def test_a_backward_has_two_products_for_each_of_the_forward(products: int, expected: list[str]) -> None:
    assert codes(recorded(model(8, backward_products=products), parameters=8 * 64 * 64)) == expected


def test_frozen_parameters_have_no_weight_gradient() -> None:
    assert codes(recorded(model(8, backward_products=1), parameters=64 * 64)) == []


def test_members_of_a_group_make_the_same_calls() -> None:
    scripts = [Script(rank, 2, [DP2]) for rank in (0, 1)]
    for script in scripts:
        script.call(Collective.ALL_REDUCE, own_stream=False)
    assert codes(*(script.recording() for script in scripts)) == []
    scripts[0].call(Collective.ALL_TO_ALL, own_stream=False, size=10)
    scripts[1].call(Collective.ALL_TO_ALL, own_stream=False, size=20)
    assert codes(*(script.recording() for script in scripts)) == []
    scripts[0].call(Collective.ALL_REDUCE, own_stream=False)
    assert failure(*(script.recording() for script in scripts)).code == "rendezvous-mismatch"
    scripts[1].call(Collective.ALL_REDUCE, own_stream=False, size=7)
    assert failure(*(script.recording() for script in scripts)).code == "rendezvous-mismatch"


def test_what_a_member_sends_another_receives() -> None:
    def script(rank: int, to_other: int, from_other: int) -> RankRecording:
        script = Script(rank, 2, [DP2])
        other = 1 - rank
        sends, receives = ((rank, 10), (other, to_other)), ((rank, 10), (other, from_other))
        script.call(Collective.ALL_TO_ALL, own_stream=False, size=10 + to_other, sends=sends, receives=receives)
        return script.recording()

    assert codes(script(0, 30, 50), script(1, 50, 30)) == []
    assert failure(script(0, 30, 50), script(1, 40, 30)).code == "rendezvous-mismatch"


def test_memory_that_a_step_keeps() -> None:
    script = model()
    script.storage(1 << 20, 0, 2)
    script.storage(1 << 20, 1, kind=Category.GRADIENTS)
    script.storage(4096, 1)
    assert codes(recorded(script)) == []
    script.storage(1 << 20, 1)
    assert codes(recorded(script)) == ["memory-imbalance"]
    script.storage(1 << 20, -1, 3)
    assert codes(recorded(script)) == []
