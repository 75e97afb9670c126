"""DualPipe runs a forward and a backward of different microbatches as one block: the all-to-alls of either are hidden
under the computation of the other (DeepSeek-V3, arXiv:2412.19437, figure 4).

A forward is attention 2, dispatch 2, experts 3, combine 2 µs; a backward combine 2, experts 4, dispatch 2, attention
4 µs.
"""

from __future__ import annotations

from foretrace import Mesh, ProgramBuilder, Transfer, pipeline, schedule, simulate
from foretrace.program.block import BlockBuilder
from foretrace.program.program import Communicator
from foretrace.schedules import Action, ActionKind
from golden.reading import US, parts_us, step_us, times, us


def overlapped(build: ProgramBuilder, ep: Communicator, chunks: tuple[int, int] = (0, 0)) -> BlockBuilder:
    """A forward and a backward, issued by turns."""
    block, (f, b) = build.block("F&B"), chunks

    def all_to_all(name: str, chunk: int, **after):
        return block.collective("all_to_all", ep, 2 * US, name=name, chunk=chunk, **after)

    f_attention = block.compute("F attention", 2 * US, chunk=f)
    b_combine = all_to_all("B combine", b)
    f_dispatch = all_to_all("F dispatch", f, after=f_attention)
    b_experts = block.compute("B experts", 4 * US, chunk=b, after=b_combine)
    f_experts = block.compute("F experts", 3 * US, chunk=f, after=f_dispatch)
    b_dispatch = all_to_all("B dispatch", b, after=b_experts)
    f_combine = all_to_all("F combine", f, after=f_experts)
    b_attention = block.compute("B attention", 4 * US, chunk=b, after=b_dispatch)
    ports = {"in 0": f_attention, "out 0": f_combine, "in 1": b_combine, "out 1": b_attention}
    for name, op in ports.items():
        block.port(name, op)
    return block


def alone(build: ProgramBuilder, ep: Communicator, action: Action) -> BlockBuilder:
    """A forward, a backward or half of one by itself: every op waits for the one before."""
    letter, facts = action.kind.letter, {"chunk": action.chunk}
    block = build.block(str(action))
    if action.kind == ActionKind.BACKWARD_WEIGHT:
        block.compute("W", 4 * US, **facts)
        return block
    order = ["attention", "dispatch", "experts", "combine"]
    length = {
        ActionKind.FORWARD: {"attention": 2, "experts": 3},
        ActionKind.BACKWARD: {"attention": 4, "experts": 4},
        ActionKind.BACKWARD_INPUT: {"attention": 2, "experts": 2},
    }[action.kind]
    before = ()
    for name in order if action.kind == ActionKind.FORWARD else reversed(order):
        if name in length:
            before = block.compute(f"{letter} {name}", length[name] * US, after=before, **facts)
        else:
            before = block.collective("all_to_all", ep, 2 * US, name=f"{letter} {name}", after=before, **facts)
    return block


def test_one_pair() -> None:
    """Computation never stops; one after the other they would take 9 + 12.

              0     2     4     6     8  9     11    13
    compute   |  Fa |     Be    |   Fe   |     Ba    |
    ep        |  Bc |  Fd |.....|  Bd |..|  Fc |
    """
    build = ProgramBuilder(Mesh(dp=2, ep=2), repeats=False)
    build.role("every rank", [0, 1]).place(overlapped(build, build.communicator("ep")), microbatch=0)
    answer = simulate(build.program())
    drawn = {
        "F attention": [(0, 2)],
        "B experts": [(2, 6)],
        "F experts": [(6, 9)],
        "B attention": [(9, 13)],
        "B combine": [(0, 2)],
        "F dispatch": [(2, 4)],
        "B dispatch": [(6, 8)],
        "F combine": [(9, 11)],
    }
    assert times(answer) == us({(rank, name): span for rank in (0, 1) for name, span in drawn.items()})
    assert step_us(answer) == 13
    assert parts_us(answer, 0) == {"compute": 13}


def test_pairs_in_the_schedule() -> None:
    """DualPipe on two stages with four microbatches: 0 and 1 enter at stage 0, 2 and 3 at stage 1. The two stages
    mirror each other, so one drawing serves both. A transfer between stages takes 1 µs. Stage 0:

    F0 from 0        a  2  d  4  e  7  c  9               sent 9-10, as is F2 from the other side
    F2.1 from 10     a 12  d 14  e 17  c 19               the end of the model: B2.1 may follow
    F1 from 17       a 19  d 21  e 24  c 26               its attention under the combine of F2.1; sent 26-27
    B2.1 from 26     c 28  e 32  d 34  a 38               its combine after that of F1 on their lane; sent 38-39
    F3.1 & B0        Fa 38-40; Bc 39-41; Fd 41-43; Be 41-45; Fe 45-48; Bd 45-47; Fc 48-50; Ba 48-52
                     B0's gradient arrives at 39, so that 1 µs of its combine is exposed; nothing else of the pair is
    B3.1 from 50     c 52  e 56  d 58  a 62               its combine under the last of B0; sent 62-63
    I1 from 63       c 65  e 67  d 69  a 71
    W1               71-75

    A pair is one placement and carries the microbatch of its forward: B0's ops are found under microbatch 3.
    """
    build = ProgramBuilder(Mesh(dp=2, ep=2, pp=2), repeats=False)
    ep = build.communicator("ep")
    order = schedule("dualpipe", 2, 4)
    assert [order.line(stage) for stage in (0, 1)] == [
        "F0 F2.1 F1 B2.1 F3.1&B0 B3.1 I1 W1",
        "F2.1 F0 F3.1 B0 F1&B2.1 B1 I3.1 W3.1",
    ]
    pipeline(
        build,
        order,
        lambda _, action: alone(build, ep, action),
        Transfer(duration_s=1 * US),
        pairs=lambda _, slot: overlapped(build, ep, (slot[0].chunk, slot[1].chunk)),
    )
    answer = simulate(build.program())

    stage_0 = {
        "F attention": [(0, 2), (17, 19)],
        "F dispatch": [(2, 4), (19, 21)],
        "F experts": [(4, 7), (21, 24)],
        "F combine": [(7, 9), (24, 26)],
        "F attention.1": {2: (10, 12), 3: (38, 40)},
        "F dispatch.1": {2: (12, 14), 3: (41, 43)},
        "F experts.1": {2: (14, 17), 3: (45, 48)},
        "F combine.1": {2: (17, 19), 3: (48, 50)},
        "B combine.1": {2: (26, 28), 3: (50, 52)},
        "B experts.1": {2: (28, 32), 3: (52, 56)},
        "B dispatch.1": {2: (32, 34), 3: (56, 58)},
        "B attention.1": {2: (34, 38), 3: (58, 62)},
        "B combine": {3: (39, 41)},
        "B experts": {3: (41, 45)},
        "B dispatch": {3: (45, 47)},
        "B attention": {3: (48, 52)},
        "I combine": {1: (63, 65)},
        "I experts": {1: (65, 67)},
        "I dispatch": {1: (67, 69)},
        "I attention": {1: (69, 71)},
        "W": {1: (71, 75)},
        "send forward": [(9, 10), (26, 27)],
        "receive forward.1": {2: (9, 10), 3: (26, 27)},
        "send backward.1": {2: (38, 39), 3: (62, 63)},
        "receive backward": [(38, 39), (62, 63)],
    }
    drawn = us({(0, name): spans for name, spans in stage_0.items()})
    both = {}
    for (_, name, microbatch), span in drawn.items():
        mirrored = name.removesuffix(".1") if name.endswith(".1") else f"{name}.1"
        for rank in (0, 1):
            both[rank, name, microbatch] = span
            both[rank + 2, mirrored, (microbatch + 2) % 4] = span
    assert times(answer) == both
    assert step_us(answer) == 75
    # 4 forwards of 5, 3 backwards of 8, half a backward and its weights 4 + 4. F2.1 comes late because of the other
    # stage's F2 (7 to 9, a bubble) and its transfer; so does I1, for the transfer alone.
    for rank in range(4):
        assert parts_us(answer, rank) == {"compute": 52, "ep exposed": 19, "pp exposed": 2, "bubble": 2}
