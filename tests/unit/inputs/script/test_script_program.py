"""Recordings as programs: what overlaps, what waits for what, and who meets whom."""

from __future__ import annotations

import pytest

from foretrace import simulate
from foretrace.basics.errors import InputError
from foretrace.inputs.script.host_costs import HostCosts
from foretrace.inputs.script.memory import peak_bytes
from foretrace.inputs.script.program import program_of
from foretrace.inputs.script.recording import HostEffort, RankRecording
from foretrace.inputs.script.write_role import MAX_QUEUED
from foretrace.program.columns import Category, Collective, Phase
from foretrace.program.program import Program
from foretrace.readings.memory import memory_tracks
from golden.reading import step_us, times_of
from script_recordings import FREE, LAUNCHES, US, Script, elementwise, group, timed

DP2 = group("dp", (0, 1))


def alone(script: Script, costs: HostCosts = FREE) -> Program:
    """One rank."""
    return program_of([script.recording()], [[script.rank]], title="script", costs=costs)


def same(script: Script, costs: HostCosts = FREE) -> Program:
    """All ranks of the world do the same."""
    return program_of([script.recording()], [range(script.world)], title="script", costs=costs)


def test_a_host_bound_chain_takes_the_sum_of_the_hosts_times() -> None:
    """Ten launches of 16 us with two calls and two views each: 16 + 2*1.5 + 2*1.5 = 22 us, times a pace of 1.5."""
    costs = HostCosts(launch_s=16 * US, python_s=1.5 * US, view_s=1.5 * US)
    script = Script()
    for _ in range(10):
        script.launch("aten::relu", host=HostEffort(views=2, calls=2))
    program = program_of([script.recording()], [[0]], title="script", pace=1.5, costs=costs)
    assert step_us(simulate(timed(program, {"aten::relu": 1 * US}))) == 330


def test_a_device_bound_chain_takes_the_sum_of_the_kernels() -> None:
    script = Script()
    for _ in range(10):
        script.launch("aten::relu")
    assert step_us(simulate(timed(alone(script, LAUNCHES), {"aten::relu": 3 * US}))) == 30


def test_a_full_queue_of_launches_holds_up_the_host() -> None:
    """Kernels of 2 us, launches of 1: the first after a full queue waits for the first kernel, which ends after 3."""
    script = Script()
    for _ in range(MAX_QUEUED):
        script.launch("aten::relu")
    for _ in range(2):
        script.launch("aten::neg")
    seconds = {"aten::relu": 2 * US, "aten::neg": 2 * US}
    answer = simulate(timed(alone(script, LAUNCHES), seconds, repeats=False))
    first = times_of(answer, 0, "aten::neg")[0]
    assert first == (MAX_QUEUED, MAX_QUEUED + 1)
    slow = {"aten::relu": 2000 * US, "aten::neg": 2 * US}
    answer = simulate(timed(alone(script, LAUNCHES), slow, repeats=False))
    assert times_of(answer, 0, "aten::neg")[0] == (2001, 2002)


def test_a_blocking_copy_holds_up_the_host() -> None:
    """Launch (1), kernel (1 to 5), copy's launch (2), copy (5 to 6), next launch (6 to 7), kernel (7 to 11)."""
    script = Script()
    script.launch("aten::relu")
    script.copy(4)
    script.launch("aten::neg")
    seconds = {"aten::relu": 4 * US, "aten::neg": 4 * US, "copy to host": 1 * US}
    answer = simulate(timed(alone(script, LAUNCHES), seconds, repeats=False))
    assert times_of(answer, 0, "copy to host")[-1] == (5, 6)
    assert times_of(answer, 0, "aten::neg") == [(6, 7), (7, 11)]


def test_a_wait_at_the_end_of_the_step_holds_up_the_next() -> None:
    script = Script()
    script.launch("aten::relu")
    script.synchronize()
    assert step_us(simulate(timed(alone(script, LAUNCHES), {"aten::relu": 4 * US}))) == 5


def test_streams_run_at_once_unless_one_waits() -> None:
    script = Script()
    script.launch("aten::mul")
    script.launch("aten::neg", stream=1)
    script.stream_wait(0, 1)
    script.launch("aten::add")
    answer = simulate(
        timed(alone(script), {"aten::mul": 3 * US, "aten::neg": 5 * US, "aten::add": 1 * US}, repeats=False)
    )
    assert times_of(answer, 0, "aten::neg")[-1] == (0, 5)
    assert times_of(answer, 0, "aten::add")[-1] == (5, 6)


def test_a_stream_waits_for_what_was_issued_until_an_event() -> None:
    script = Script()
    first = script.launch("aten::mul", stream=1)
    script.launch("aten::neg", stream=1)
    script.stream_wait(0, 1, until=first + 1)
    script.launch("aten::add")
    answer = simulate(
        timed(alone(script), {"aten::mul": 3 * US, "aten::neg": 5 * US, "aten::add": 1 * US}, repeats=False)
    )
    assert times_of(answer, 0, "aten::add")[-1] == (3, 4)


def test_a_wait_for_a_stream_that_only_waits_is_passed_on() -> None:
    """Stream 1 waits for a call and issues nothing; stream 0 then waits for stream 1."""
    script = Script(world=2, groups=[DP2])
    call = script.call(Collective.ALL_REDUCE)
    script.wait(call, stream=1)
    script.stream_wait(0, 1)
    script.launch("aten::add")
    answer = simulate(timed(same(script), {"all_reduce": 7 * US, "aten::add": 1 * US}, repeats=False))
    assert times_of(answer, 0, "aten::add")[-1] == (7, 8)


def test_gradients_are_reduced_next_to_the_backward() -> None:
    """Backward of two layers, 4 us each. The first bucket (5 us) runs next to the second layer, the second after it."""
    script = Script(world=2, groups=[DP2], phase=Phase.BACKWARD)
    calls = []
    for op in ("aten::mul", "aten::neg"):
        script.launch(op)
        calls.append(script.call(Collective.ALL_REDUCE))
    for call in calls:
        script.wait(call)
    script.phase = Phase.OPTIMIZER
    script.launch("aten::add")
    seconds = {"aten::mul": 4 * US, "aten::neg": 4 * US, "all_reduce": 5 * US, "aten::add": 2 * US}
    answer = simulate(timed(same(script), seconds, repeats=False))
    assert times_of(answer, 1, "all_reduce")[-2:] == [(4, 9), (9, 14)]
    assert times_of(answer, 1, "aten::add")[-1] == (14, 16)
    assert step_us(simulate(timed(same(script), seconds))) == 16


def test_a_call_without_a_stream_of_its_own_runs_on_the_current_one() -> None:
    script = Script(world=2, groups=[DP2])
    script.launch("aten::mul")
    script.call(Collective.ALL_GATHER, own_stream=False)
    script.launch("aten::add")
    answer = simulate(
        timed(same(script), {"aten::mul": 1 * US, "all_gather": 3 * US, "aten::add": 1 * US}, repeats=False)
    )
    assert times_of(answer, 0, "aten::add")[-1] == (4, 5)


def test_waits_for_the_step_before_become_links() -> None:
    """A gather of the step's end is waited for in the next step: 4 us of work run next to its 10 us."""
    script = Script(world=2, groups=[DP2])
    for _ in range(2):
        before = script.steps[-1][1] - 1 if script.steps else -1
        script.launch("aten::mul")
        script.wait(before)
        script.launch("aten::neg")
        script.call(Collective.ALL_GATHER)
        script.end_step()
    answer = simulate(timed(same(script), {"aten::mul": 4 * US, "aten::neg": 2 * US, "all_gather": 10 * US}))
    assert step_us(answer) == 2 + 10


def test_the_host_waits_for_a_call_or_a_stream() -> None:
    """The call runs from 1 to 6; the host's next op from 6 to 7; the side stream's from 7 to 11; the last from 11."""
    script = Script(world=2, groups=[DP2])
    script.wait(script.call(Collective.ALL_REDUCE), by_host=True)
    script.launch("aten::mul", stream=1)
    script.synchronize(1)
    script.launch("aten::neg")
    seconds = {"all_reduce": 5 * US, "aten::mul": 4 * US, "aten::neg": 1 * US}
    answer = simulate(timed(same(script, LAUNCHES), seconds, repeats=False))
    assert times_of(answer, 0, "aten::mul") == [(6, 7), (7, 11)]
    assert times_of(answer, 0, "aten::neg") == [(11, 12), (12, 13)]


def test_a_wait_for_the_stream_of_the_step_before() -> None:
    """The side stream (6 us) starts with the step, after the last work (2 us) of the step before on the main one."""
    script = Script()
    script.stream_wait(1, 0)
    script.launch("aten::mul", stream=1)
    script.stream_wait(0, 1)
    script.launch("aten::neg")
    assert step_us(simulate(timed(alone(script), {"aten::mul": 6 * US, "aten::neg": 2 * US}))) == 8


def test_a_group_of_one_rank_copies() -> None:
    script = Script(groups=[group("dp", (0,))])
    script.wait(script.call(Collective.ALL_GATHER))
    script.call(Collective.ALL_REDUCE)
    answer = simulate(timed(alone(script), {"all_gather": 2 * US, "all_reduce": 5 * US}, repeats=False))
    assert step_us(answer) == 2


def test_steps_that_differ_are_one_program() -> None:
    script = Script()
    script.launch("aten::mul")
    script.end_step()
    script.launch("aten::mul")
    script.launch("aten::neg")
    script.end_step()
    program = timed(alone(script), {"aten::mul": 1 * US, "aten::neg": 1 * US})
    assert step_us(simulate(program)) == 3
    assert [note.code for note in program.diagnostics] == ["steps-differ"]


def stages() -> tuple[RankRecording, RankRecording]:
    """Two stages of two pipelines on ranks 0 to 3: forward, send, receive the gradient, backward."""
    first = Script(0, 4, [group("pp", (0, 2), (1, 3))])
    first.launch("aten::mul")
    first.send(2)
    first.wait(first.receive(2))
    first.launch("aten::neg")
    second = Script(2, 4, [group("pp", (0, 2), (1, 3))])
    second.wait(second.receive(0))
    second.launch("aten::add")
    second.send(0)
    return first.recording(), second.recording()


def test_transfers_between_two_stages() -> None:
    program = program_of(stages(), [[0, 1], [2, 3]], title="script", costs=FREE)
    seconds = {"aten::mul": 4 * US, "aten::add": 6 * US, "aten::neg": 3 * US, "send": 1 * US, "receive": 1 * US}
    answer = simulate(timed(program, seconds, repeats=False))
    for pipeline in (0, 1):
        assert times_of(answer, pipeline + 2, "aten::add")[-1] == (5, 11)
        assert times_of(answer, pipeline, "aten::neg")[-1] == (12, 15)
    assert (program.mesh.dp, program.mesh.pp) == (2, 2)


def test_transfers_in_the_default_group_are_between_recordings() -> None:
    """Ranks 0 and 1 send to ranks 2 and 3, all in one group."""
    world = group("world", (0, 1, 2, 3))
    first, second = Script(0, 4, [world]), Script(2, 4, [world])
    first.launch("aten::mul")
    first.send(2)
    second.wait(second.receive(0))
    second.launch("aten::add")
    program = program_of([first.recording(), second.recording()], [[0, 1], [2, 3]], title="script", costs=FREE)
    seconds = {"aten::mul": 4 * US, "send": 1 * US, "receive": 1 * US, "aten::add": 1 * US}
    answer = simulate(timed(program, seconds, repeats=False))
    assert times_of(answer, 3, "aten::add")[-1] == (5, 6)
    assert {pair for communicator in program.communicators for pair in communicator.groups or ()} == {(0, 2), (1, 3)}


def test_a_ring_of_one_recording_divides_its_ranks() -> None:
    """Every rank sends to the next and receives from the one before, in one batch."""
    script = Script(0, 3, [group("cp", (0, 1, 2))])
    script.launch("aten::mul")
    batch = script.call(Collective.EXCHANGE, name="batch", sends=((1, 1024),), receives_from=(2,))
    script.wait(batch)
    script.launch("aten::add")
    program = same(script)
    assert len(program.roles) == 3
    answer = simulate(timed(program, {"aten::mul": 4 * US, "batch": 2 * US, "aten::add": 1 * US}, repeats=False))
    assert times_of(answer, 2, "aten::add")[-1] == (6, 7)


def test_axes_and_layers() -> None:
    script = Script(0, 4, [group("tp", (0, 1), (2, 3)), group("dp_shard", (0, 2), (1, 3)), group("mine", (0, 1, 2, 3))])
    script.modules, script.module = ["layers.12.attention"], 0
    for number in range(3):
        script.call(Collective.ALL_REDUCE, number)
    program = same(script, LAUNCHES)
    assert [communicator.axis for communicator in program.communicators] == ["tp", "shard", "mine"]
    assert (program.mesh.tp, program.mesh.dp) == (2, 2)
    assert set(program.templates.columns["layer"].tolist()) == {12, -1}


def test_groups_of_no_mesh_leave_all_ranks_along_dp() -> None:
    script = Script(0, 4, [group("tp", (0, 3), (1, 2))])
    script.call(Collective.ALL_REDUCE)
    assert same(script).mesh.dp == 4


def test_memory_is_that_of_the_hosts_order() -> None:
    script = Script()
    script.launch("aten::mul")
    script.launch("aten::neg")
    script.storage(1 << 20, -1, kind=Category.WEIGHTS)
    script.storage(1000, 0, 2)
    script.storage(2000, 1, 2)
    script.storage(4096, 1, 1, Category.TEMPORARIES)
    answer = simulate(timed(alone(script, LAUNCHES), {"aten::mul": 1 * US}))
    track = memory_tracks(answer.timeline)[0]
    assert track.peak_bytes == (1 << 20) + 1024 + 2048 + 4096 == peak_bytes(script.recording())
    assert track.at_peak()["weights"] == 1 << 20
    assert (track.grows_bytes, track.assumed_bytes) == (0, 0)


def test_unknown_ops_are_named_once() -> None:
    script = Script()
    script.launch(elementwise("mylib::secret"))
    script.launch(elementwise("mylib::secret"))
    notes = alone(script).diagnostics
    assert [note.code for note in notes] == ["unknown-op"]
    assert "mylib::secret (2)" in notes[0].message


def test_ranks_are_stated_once() -> None:
    script = Script(world=2)
    script.launch("aten::mul")
    for ranks, code in (([[0]], "missing-ranks"), ([[0, 0]], "missing-ranks"), ([[1]], "no-such-rank")):
        with pytest.raises(InputError) as error:
            program_of([script.recording()], ranks, title="script")
        assert error.value.code == code
