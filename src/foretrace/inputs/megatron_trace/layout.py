"""Finds the job that traces are of: its mesh, its traced ranks, and which of them stand in for the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from foretrace.basics.errors import Diagnostic, InputError
from foretrace.basics.limits import check_gpus
from foretrace.basics.mesh import Mesh
from foretrace.inputs.megatron_trace.calls import AXES, comm_of, group_of
from foretrace.inputs.megatron_trace.format import BUCKET_OP, Facts, RankTrace, Run, TraceOp
from foretrace.inputs.megatron_trace.format.ex_situ import TRANSFERS, is_ex_situ, says_ex_situ


@dataclass(frozen=True)
class TraceJob:
    """The runs of one job: one real run, or campaigns of ex-situ traces."""

    runs: tuple[Run, ...]
    mesh: Mesh
    facts: Facts
    ex_situ: bool
    notes: tuple[Diagnostic, ...]

    @property
    def name(self) -> str:
        """The name of the job in messages."""
        names = dict.fromkeys(run.name for run in self.runs)
        return " + ".join(names)

    @property
    def layers_per_stage(self) -> int | None:
        """Layers of every stage, where the names say so and they divide evenly."""
        layers = self.facts.layers
        return layers // self.mesh.pp if layers and layers % self.mesh.pp == 0 else None

    @property
    def alone(self) -> bool:
        """Whether it is one rank of which the mesh is not known."""
        return self.mesh.world == 1 and not self.facts.world

    @property
    def known_mesh(self) -> Mesh | None:
        """The mesh, None where the groups a rank communicates over are unknown."""
        return None if self.alone else self.mesh

    def stage(self, rank: int) -> int:
        """The stage of a rank."""
        return 0 if self.alone else self._stages[rank]

    def expert_rank(self, rank: int) -> int:
        """The coordinate of a rank among those that share experts."""
        return self._expert_ranks[rank] if self.mesh.ep > 1 else 0

    @cached_property
    def _stages(self) -> list[int]:
        return [int(stage) for stage in self.mesh.coordinate("pp")]

    @cached_property
    def _expert_ranks(self) -> list[int]:
        return [int(expert) for expert in self.mesh.coordinate("ep")]

    def place(self, stage: int) -> str:
        """Returns whether a stage is the first, the last or in the middle: stages in the middle are identical."""
        return (
            "only"
            if self.mesh.pp == 1
            else "first"
            if stage == 0
            else "last"
            if stage == self.mesh.pp - 1
            else "middle"
        )

    def traces(self, rank: int) -> Iterator[RankTrace]:
        """Yields the traces of a rank, run by run."""
        for run in self.runs:
            if rank in run.ranks:
                yield run.ranks[rank]

    @cached_property
    def present(self) -> list[int]:
        """The ranks there are traces of."""
        return sorted({rank for run in self.runs for rank in run.ranks})

    def standing_in(self, stage: int, expert_rank: int) -> tuple[int, bool]:
        """Returns a rank whose trace serves for this stage and expert coordinate, and whether it is one of theirs.

        Otherwise it is a rank of an identical stage, or else of the nearest.
        """

        def distance(rank: int) -> tuple[bool, bool, bool, int, int]:
            other = self.stage(rank)
            return (
                self.place(other) != self.place(stage),
                self.expert_rank(rank) != expert_rank,
                other != stage,
                abs(other - stage),
                rank,
            )

        nearest = min(self.present, key=distance)
        return nearest, self.stage(nearest) == stage and self.expert_rank(nearest) == expert_rank


def mesh_of(given: Mesh | str, base: Mesh) -> Mesh:
    """The mesh that a user gives; axes that a text does not name are as in `base`."""
    return Mesh.parse(given, where="--mesh", base=base) if isinstance(given, str) else given


def find_job(runs: Sequence[Run], mesh: Mesh | str | None) -> TraceJob:
    """The job that runs are of; `mesh` is what the user says it is."""
    facts = _same_facts(runs)
    job_mesh, notes = _find_mesh(runs, facts, mesh)
    check_gpus(job_mesh.world, runs[0].path)  # before ranks are listed
    ex_situ = is_ex_situ(runs)
    notes += _check_one_kind(runs, ex_situ)
    if not ex_situ and len(runs) > 1:
        whole = max(runs, key=lambda run: len(run.ranks))
        text = f"{len(runs)} real runs; {whole.name} is taken: runs are replayed one at a time"
        notes.append(Diagnostic("warning", "one-of-several", text, whole.path))
        runs = [whole]
    notes += [*_unnamed(runs), *_lost_axes(runs, job_mesh)]
    job = TraceJob(tuple(runs), job_mesh, facts, ex_situ, tuple(notes))
    _check_ranks(job)
    _check_shapes(job)
    return job


def _lost_axes(runs: Sequence[Run], mesh: Mesh) -> list[Diagnostic]:
    """Axes that communicate in the traces although the mesh has them of size one: that counts as computation."""
    if mesh.world == 1:
        return []
    lost: dict[str, str] = {}
    for trace in (trace for run in runs for trace in run.ranks.values()):
        for op in trace.ops:
            for sub in op.subs:
                axis = AXES.get(group_of(sub), "")
                if axis in ("tp", "cp", "ep") and mesh.size(axis) == 1 and axis not in lost:
                    lost[axis] = trace.at(op.line)
    return [
        Diagnostic(
            "warning",
            "conflicting-values",
            f"{axis} communicates in the traces, but the mesh has {axis} 1: it counts as computation",
            at,
        )
        for axis, at in lost.items()
    ]


def _unnamed(runs: Sequence[Run]) -> list[Diagnostic]:
    """Reports communication that does not name its group."""
    for trace in (trace for run in runs for trace in run.ranks.values()):
        for op in trace.ops:
            for sub in op.subs:
                if sub.group is None or sub.comm is None:
                    text = (
                        f"{sub.source} names no {'group' if sub.group is None else 'collective'}: taken from its name"
                    )
                    return [Diagnostic("note", "guessed", text, trace.at(op.line))]
    return []


def _check_one_kind(runs: Sequence[Run], ex_situ: bool) -> list[Diagnostic]:
    """Raises an error where real traces are among ex-situ ones; says where it is not written which they are."""
    traces = [trace for run in runs for trace in run.ranks.values()]
    simulated = [trace for trace in traces if says_ex_situ(trace)]
    for trace in traces if simulated else ():
        if not says_ex_situ(trace) and any(op.op in TRANSFERS or op.state is not None for op in trace.ops):
            raise InputError(
                "several-inputs",
                "a real run and traces taken ex situ are given together",
                where=trace.path,
                hint="a prediction does not read what it is compared with: foretrace compare EX_SITU… REAL",
            )
    odd = next((run for run in runs if is_ex_situ([run]) != ex_situ), None)
    if odd is not None:
        raise InputError(
            "several-inputs",
            "a real run and traces taken ex situ are given together",
            where=odd.path,
            hint="a prediction does not read what it is compared with: foretrace compare EX_SITU… REAL",
        )
    if ex_situ and not simulated:
        text = (
            "taken as traced ex situ, one GPU acting as each rank: there are no transfers and no phases of a schedule"
        )
        return [Diagnostic("note", "guessed", text, runs[0].path)]
    return []


def _same_facts(runs: Sequence[Run]) -> Facts:
    """Returns the facts that the names of all runs tell together."""
    known: dict[str, int] = {}
    path_of: dict[str, str] = {}
    for run in runs:
        for name in Facts.__dataclass_fields__:
            value = getattr(run.facts, name)
            if value is None:
                continue
            if known.setdefault(name, value) != value:
                raise InputError(
                    "several-inputs",
                    f"{name} is {value} here and {known[name]} in {path_of[name]}: not the same job",
                    where=run.path,
                    hint="give the campaigns of one job, or the folder of one",
                )
            path_of.setdefault(name, run.path)
    return Facts(**known)


def _find_mesh(runs: Sequence[Run], facts: Facts, given: Mesh | str | None) -> tuple[Mesh, list[Diagnostic]]:
    """The mesh the traces were taken on, from their names."""
    where = runs[0].path
    tp, pp = facts.tp, facts.pp
    if tp is not None and pp is not None and (facts.world or facts.dp):
        world = facts.world or tp * pp * (facts.dp or 1)
        if world % (tp * pp):
            raise InputError("not-divisible", f"{world} ranks do not divide into tp {tp} and pp {pp}", where=where)
        dp = world // (tp * pp)
        if facts.dp is not None and facts.dp != dp:
            raise InputError(
                "conflicting-values",
                f"dp is {facts.dp} by name, {world} ranks over tp {tp} and pp {pp} give {dp}",
                where=where,
            )
        try:
            return Mesh(tp=tp, pp=pp, dp=dp, ep=facts.ep or 1), []
        except InputError as error:
            raise InputError(error.code, error.message, where=where, hint=error.hint) from None
    if given is not None:
        known = {axis: named for axis in ("tp", "pp", "dp", "ep") if (named := getattr(facts, axis)) is not None}
        # The text decides whether an ep fits, not the part of the mesh that the names say.
        base = Mesh(**{axis: size for axis, size in known.items() if axis != "ep"})
        mesh = mesh_of(given, base)
        for axis, named in known.items():
            if named != mesh.size(axis):
                raise InputError(
                    "conflicting-values", f"{axis} is {named} by name, {mesh.size(axis)} as asked", where=where
                )
        return mesh, [Diagnostic("note", "unknown-mesh", f"the names do not say the mesh: {mesh} as asked", where)]
    return Mesh(), [
        Diagnostic(
            "warning",
            "unknown-mesh",
            "the names of these files do not say the mesh: the rank is looked at alone, and the groups it communicates "
            f"over ({_groups_seen(runs)}) are unknown; for the whole job give it, as in --mesh tp=1,pp=2,ep=8,dp=8",
            where,
        )
    ]


def _groups_seen(runs: Sequence[Run]) -> str:
    groups: dict[str, None] = {}
    for op in (op for run in runs for trace in run.ranks.values() for op in trace.ops):
        for group in (op.group if op.shape else None, *(sub.group for sub in op.subs)):
            if group:
                groups.setdefault(group)
    return ", ".join(groups) or "none"


def _check_ranks(job: TraceJob) -> None:
    """Ranks must be on the mesh, and on the stage they say."""
    for run in job.runs:
        for rank, trace in run.ranks.items():
            if job.alone and len(job.present) == 1:
                continue
            if rank >= job.mesh.world:
                raise InputError(
                    "bad-mesh",
                    f"rank {rank} is not on the mesh {job.mesh} of {job.mesh.world} ranks",
                    where=trace.path,
                    hint="give the mesh with --mesh",
                )
            for op in trace.ops:
                if op.stage is not None and op.stage != job.stage(rank):
                    raise InputError(
                        "bad-mesh",
                        f"rank {rank} says it is on stage {op.stage}; on mesh {job.mesh} it is on {job.stage(rank)}",
                        where=trace.at(op.line),
                        hint="give the mesh with --mesh",
                    )


def _check_shapes(job: TraceJob) -> None:
    """The number of experts that a rank counts tokens for must be the names', and be shared out evenly."""
    ep, experts = job.mesh.ep, job.facts.experts
    if ep == 1:
        return
    for run in job.runs:
        for trace in run.ranks.values():
            for op in trace.ops:
                for sub in op.subs:
                    if (group_of(sub), comm_of(sub)) == ("exp", "allgather") and sub.shape and len(sub.shape) == 1:
                        _check_experts(sub.shape[0], ep, experts, trace.at(op.line))
                        return


def _check_experts(counted: int, ep: int, named: int | None, where: str) -> None:
    if counted % ep:
        raise InputError(
            "not-divisible",
            f"{counted} experts are not shared out evenly among ep {ep}",
            where=where,
            hint="give the mesh with --mesh",
        )
    if named is not None and counted != named:
        raise InputError(
            "conflicting-values", f"{counted} experts are counted here, {named} by the file's name", where=where
        )


def fill_notes(job: TraceJob, roles: Mapping[tuple[int, int], tuple[int, bool]]) -> list[Diagnostic]:
    """Reports ranks without a trace."""
    missing = job.mesh.world - len(job.present)
    if not missing or job.mesh.world == 1:
        return []
    notes = [
        Diagnostic(
            "note",
            "missing-ranks",
            f"{missing:,} of {job.mesh.world:,} ranks have no trace: each is taken to be as another of its stage"
            + (" and expert coordinate" if job.mesh.ep > 1 else ""),
        )
    ]
    guessed = [(key, rank) for key, (rank, own) in roles.items() if not own]
    if guessed:
        (stage, expert), rank = guessed[0]
        what = f"stage {stage}" + (f", expert coordinate {expert}" if job.mesh.ep > 1 else "")
        more = f" ({len(guessed)} such in all)" if len(guessed) > 1 else ""
        text = f"no rank of {what} was traced: rank {rank} stands in, of stage {job.stage(rank)}{more}"
        notes.append(Diagnostic("warning", "missing-ranks", text))
    return notes


def last_iteration(trace: RankTrace) -> list[TraceOp]:
    """The ops of the last iteration in a file; batch ids begin again with each."""
    seen: set[tuple[str, int | None]] = set()
    first = 0
    for number, op in enumerate(trace.ops):
        key = (op.op, op.batch)
        if op.op != BUCKET_OP and key in seen:
            seen, first = set(), number
        seen.add(key)
    return list(trace.ops[first:])
