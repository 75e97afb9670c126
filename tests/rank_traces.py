"""Traces of several ranks with a known truth: a small simulation of streams and rendezvous, written as Kineto does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kineto_files import document, kernel, span, write

LAUNCH_US = 5.0
"""What a launch takes the host."""

MAIN, COMM = 7, 20


@dataclass(frozen=True)
class Work:
    """A kernel of a step: microseconds on each rank, its stream, and the works it waits for on other streams. With
    `group`, a communication of these ranks, which takes `us[0]` from when the last has come."""

    name: str
    us: Sequence[float]
    stream: int = MAIN
    after: tuple[str, ...] = ()
    group: str = ""
    ranks: tuple[int, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Of the kernel; those that differ by rank under the rank's number."""

    def of(self, rank: int) -> float:
        """Its time on a rank."""
        return self.us[rank % len(self.us)]


def all_reduce(
    name: str, us: float, ranks: Sequence[int], *, elements: int = 1 << 20, group: str = "0", **more: Any
) -> Work:
    """An all-reduce of bf16 on the communication stream."""
    arguments = {
        "Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "dtype": "BFloat16",
        "Group size": len(ranks), "Process Group Name": group, "Process Group Ranks": str(list(ranks)),
        "Process Group Description": "default_pg",
    }  # fmt: skip
    return Work(
        f"ncclDevKernel_AllReduce {name}", [us], COMM, group=group, ranks=tuple(ranks), arguments=arguments, **more
    )


def step(ranks: Sequence[int], *, slow: int | None = None, transfer_us: float = 3000.0) -> list[Work]:
    """A backward whose gradients are reduced beside the rest of it, and an optimizer that waits for both; rank `slow`
    computes 2 ms longer before the reduction."""
    before = [4000.0 + (2000.0 if rank == slow else 0.0) for rank in ranks]
    return [
        Work("gemm_a", before),
        all_reduce("gradients", transfer_us, ranks, after=("gemm_a",)),
        Work("gemm_b", [2500.0]),
        Work("adam", [1000.0], after=("ncclDevKernel_AllReduce gradients",)),
    ]


@dataclass
class _Rank:
    free: dict[int, float] = field(default_factory=dict)
    host: float = 0.0
    end: dict[str, float] = field(default_factory=dict)
    began: dict[str, float] = field(default_factory=dict)
    launched: dict[str, float] = field(default_factory=dict)


def simulate(work: Sequence[Work], ranks: Sequence[int], steps: int) -> list[dict[int, _Rank]]:
    """What happens, step by step and rank by rank, in microseconds."""
    state = {rank: _Rank() for rank in ranks}
    found = []
    for _ in range(steps):
        now = {rank: _Rank(dict(one.free), one.host) for rank, one in state.items()}
        for item in work:
            for one in now.values():
                one.launched[item.name] = one.host
                one.host += LAUNCH_US
                waits = [one.end[name] for name in item.after if name in one.end]
                one.began[item.name] = max(
                    one.launched[item.name] + LAUNCH_US, one.free.get(item.stream, 0.0), *waits, 0.0
                )
            for rank, one in now.items():
                members = [now[other] for other in item.ranks if other in now] if item.group else [one]
                last = max(member.began[item.name] for member in members)
                one.end[item.name] = (last if item.group else one.began[item.name]) + item.of(rank)
            for one in now.values():
                one.free[item.stream] = one.end[item.name]
        for one in now.values():
            one.host = max(one.host, *one.end.values())  # the host waits for its device
        found.append(now)
        state = now
    return found


def write_ranks(
    folder: Path,
    work: Sequence[Work],
    ranks: Sequence[int],
    *,
    world: int | None = None,
    steps: int = 3,
    clocks_us: Mapping[int, float] | None = None,
    only: Sequence[int] | None = None,
) -> tuple[list[Path], float]:
    """Files of ranks, those of `only`, whose clocks differ as said; and the time of a steady step in seconds."""
    run = simulate(work, ranks, steps)
    paths = []
    for rank in ranks if only is None else only:
        ahead = (clocks_us or {}).get(rank, 0.0)
        events = _events(work, [moment[rank] for moment in run], rank, ahead)
        info = {"backend": "nccl", "rank": rank, "world_size": world or len(ranks)}
        paths.append(write(folder, document(events, distributedInfo=info), f"rank{rank}.json"))
    last, before = (max(one.host for one in run[at].values()) for at in (-1, -2))
    return paths, (last - before) * 1e-6


def _events(work: Sequence[Work], moments: Sequence[_Rank], rank: int, ahead: float) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    correlation = 100
    began = 0.0
    for number, moment in enumerate(moments):
        events.append(span("user_annotation", f"ProfilerStep#{number}", began + ahead, moment.host - began))
        for item in work:
            at = moment.launched[item.name] + ahead
            for name in item.after:
                source = next(one.stream for one in work if one.name == name)
                if source != item.stream:
                    events += _wait(at, source, item.stream, correlation)
                    correlation += 2
            events.append(span("cuda_runtime", "cudaLaunchKernel", at, LAUNCH_US, correlation=correlation))
            own = {**item.arguments, **item.arguments.get(str(rank), {})}
            took = moment.end[item.name] - moment.began[item.name]
            one = kernel(item.name, moment.began[item.name] + ahead, took, correlation, stream=item.stream)
            one["args"] |= {key: value for key, value in own.items() if not key.isdecimal()}
            events.append(one)
            correlation += 1
        launched = max(moment.launched.values()) + LAUNCH_US
        events.append(
            span(
                "cuda_runtime",
                "cudaDeviceSynchronize",
                launched + ahead,
                moment.host - launched,
                correlation=correlation,
            )
        )
        correlation += 1
        began = moment.host
    return events


def _wait(at: float, source: int, target: int, correlation: int) -> list[dict[str, Any]]:
    """A mark in one stream, and another that waits for it."""
    waits = {"wait_on_stream": source, "wait_on_cuda_event_record_corr_id": correlation, "stream": target}
    sync = span("cuda_sync", "Stream Wait Event", at, 0, pid=0, tid=target, correlation=correlation + 1, device=0)
    sync["args"] |= waits
    return [
        span("cuda_runtime", "cudaEventRecord", at, 0, correlation=correlation),
        span("cuda_runtime", "cudaStreamWaitEvent", at, 0, correlation=correlation + 1),
        sync,
    ]
