"""Jobs of known size and shape for the benchmarks."""

from __future__ import annotations

import numpy as np

from foretrace import Mesh, Program, ProgramBuilder, Transfer, pipeline, schedule
from foretrace.program.block import BlockBuilder, OpRef, PlacedOp
from foretrace.schedules import Action, ActionKind


def arbitrary(ops: int, lanes: int) -> Program:
    """One rank; every op on a random lane, after a random one of the 500 before it; durations in whole nanoseconds."""
    random = np.random.default_rng(ops + lanes)
    build = ProgramBuilder(Mesh(), title=f"{ops} arbitrary ops")
    block = build.block("all")
    lane = random.integers(0, lanes, ops).tolist()
    distance = random.integers(1, 500, ops).tolist()
    duration = (random.integers(1_000, 1_000_000, ops) / 1e9).tolist()
    refs: list[OpRef] = []
    for i in range(ops):
        after = refs[i - distance[i]] if distance[i] <= i else ()
        refs.append(block.compute("op", duration[i], lane=f"lane {lane[i]}", after=after))
    build.role("all", [0]).place(block)
    return build.program()


def replicated(ops: int) -> Program:
    """1,024 ranks that run the same ops: computation, all-reduces in groups of 8, reduce-scatters in groups of 64."""
    build = ProgramBuilder(Mesh(tp=8, dp=64, pp=2), title="replicated")
    tp, dp = build.communicator("tp"), build.communicator("dp")
    block = build.block("layer")
    last = block.compute("begin", 1e-4)
    for i in range(1, 28):
        if i % 4 == 3:
            last = block.collective("all_reduce", tp, 3e-4, bytes=1 << 20, after=last)
        elif i % 14 == 12:
            block.collective("reduce_scatter", dp, 9e-4, bytes=1 << 24, after=last)
        else:
            last = block.compute("gemm", 1e-3 + 1e-4 * (i % 3), after=last)
    role = build.role("all", range(build.mesh.world))
    for microbatch in range(ops // 28):
        role.place(block, microbatch=microbatch)
    return build.program()


def pipeline_job(stages: int, microbatches: int) -> Program:
    """1F1B on 100,096 GPUs: one op forward, one backward, transfers between stages."""
    build = ProgramBuilder(Mesh(tp=8, dp=782, pp=stages), title="pipeline")
    plan = schedule("1f1b", stages, microbatches)
    blocks: dict[tuple[int, ActionKind], BlockBuilder] = {}

    def block(stage: int, action: Action) -> BlockBuilder:
        key = (stage, action.kind)
        if key not in blocks:
            blocks[key] = build.block(action.kind.name.lower())
            seconds = (2e-2 if action.kind == ActionKind.BACKWARD else 1e-2) * (1 + 0.01 * stage)
            blocks[key].compute("layers", seconds, phase=action.kind.name.lower())
        return blocks[key]

    pipeline(build, plan, block, Transfer(bytes=1 << 24, duration_s=1e-3))
    return build.program()


def sharing(ranks: int, rounds: int) -> Program:
    """Ranks that compute and send to their neighbour over links shared by four, at times that never coincide."""
    random = np.random.default_rng(7)
    build = ProgramBuilder(Mesh(dp=ranks), title="sharing", repeats=False)
    build.resource("link", 1.0, shared_by=[range(i, i + 4) for i in range(0, ranks, 4)])
    pairs = build.groups("pairs", [(i, i + 1) for i in range(0, ranks, 2)], axis="dp")
    for rank in range(ranks):
        role = build.role(f"rank {rank}", [rank])
        last = role.compute("work", float(random.uniform(0.5, 1.5)))
        for _ in range(rounds):
            draws = {"link": 0.6} if rank % 2 == 0 else None
            to = 1 if rank % 2 == 0 else None
            sent = role.transfer("send", pairs, 1.0, to=to, bytes=1, draws=draws, after=last)
            last = role.compute("work", float(random.uniform(0.5, 1.5)), after=sent)
    return build.program()


def meeting(ops: int, ranks: int = 16) -> Program:
    """Ranks that each do something of their own; a fifth of the ops are meetings of random neighbours."""
    random = np.random.default_rng(ops)
    build = ProgramBuilder(Mesh(dp=ranks), title="meeting")
    roles = [build.role(f"rank {rank}", [rank]) for rank in range(ranks)]
    pairs = [build.groups(f"pair {rank}", [[rank, rank + 1]], axis="dp") for rank in range(ranks - 1)]
    last: list[PlacedOp | None] = [None] * ranks
    written = 0
    while written < ops:
        rank = int(random.integers(0, ranks))
        if rank + 1 < ranks and random.random() < 0.2:
            for member in (rank, rank + 1):
                last[member] = roles[member].collective("all_reduce", pairs[rank], 1e-4, bytes=8, after=last[member])
            written += 2
        else:
            last[rank] = roles[rank].compute("work", float(random.integers(1, 1000)) / 1e6, after=last[rank])
            written += 1
    return build.program()
