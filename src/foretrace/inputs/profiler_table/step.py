"""Describes the step of a profiler table, and reports what is assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from foretrace.basics.errors import Diagnostic, listed
from foretrace.basics.mesh import Mesh
from foretrace.basics.units import format_bytes, format_time
from foretrace.inputs.option_values import Overlap
from foretrace.inputs.profiler_table.calls import SizedCall, StepCalls, check_calls
from foretrace.inputs.profiler_table.communication import TableCollective
from foretrace.inputs.profiler_table.options import ProfilerTableOptions
from foretrace.inputs.profiler_table.parts import TablePart
from foretrace.inputs.profiler_table.profile import TableProfile
from foretrace.inputs.profiler_table.rows import RowKind
from foretrace.inputs.profiler_table.sizes import Sizes, call_bytes, missing_error
from foretrace.inputs.torch_ops.kinds import WorkKind
from foretrace.inputs.torch_ops.recorded_gpu import TABLE
from foretrace.program.columns import Collective, Phase
from foretrace.program.program import Source
from foretrace.schedules import make
from foretrace.step.buckets import even_ddp_buckets
from foretrace.step.spec import Call, ChunkSpec, Compute, Cut, EndItem, HostWork, Item, RoleSpec, StepSpec, Unit, Work

RECORDED: Final = Source(TABLE)

_COMPUTE_STAYS: Final = (
    "computation of each GPU takes what the table says, on any GPU and mesh: only communication is priced on a cluster"
)
_MIN_SHOWN: Final = 0.9
"""The share of the totals below a table that its rows must have for the step to be right."""
_REDUCE: Final = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)
_NO_OVERLAP: Final = (
    "no communication runs next to computation: a table does not say what did (FSDP's prefetching would hide a part; "
    "--overlap grad spreads the reductions over the backward)"
)


@dataclass(slots=True)
class TableStep:
    """Describes the step of one table."""

    profile: TableProfile
    mesh: Mesh
    sizes: Sizes
    steps: int
    options: ProfilerTableOptions
    path: str

    def spec(self, notes: Sequence[Diagnostic]) -> StepSpec:
        """Returns the step, with these notes and its own."""
        sized = self._sized() if self.mesh.world > 1 else []
        buckets = self._gradient_buckets()
        diagnostics = (*self._report(sized), *self.sizes.notes, *notes)
        calls = StepCalls(sized, self.steps)
        # Where no row has a phase, nothing of the computation is known to come after the backward.
        unknown = not self._phases() & {Phase.BACKWARD, Phase.OPTIMIZER}
        forward = [*calls.gather(Phase.FORWARD), *self._computed(calls, Phase.FORWARD)]
        backward = [*calls.gather(Phase.BACKWARD), *self._computed(calls, Phase.BACKWARD)]
        if unknown:
            backward += self._computed(calls, Phase.NONE)
        cuts: tuple[Cut, ...] = ()
        reduced = [_bucket(size) for size in buckets] or (calls.reduce() if self._overlaps_shown() else [])
        if reduced:
            backward.append(_instant("end of the backward", Phase.BACKWARD))
            cuts = self._cuts(reduced, sum(item.seconds for item in backward if isinstance(item, Compute)))
        work = Work("step", tuple(forward), (), tuple(backward))
        role = RoleSpec(
            stage=0,
            name="GPU",
            ranks=range(self.mesh.world),
            chunks=((ChunkSpec((Unit(work),)),),),
            end=self._end(calls, sized, overlapped=bool(reduced), unknown=unknown),
            cuts=cuts,
        )
        return StepSpec(
            title=f"{Path(self.profile.table.path).name} · one profiled step",
            mesh=self.mesh,
            schedule=make("1f1b", 1, 1),
            roles=(role,),
            diagnostics=diagnostics,
        )

    def _gradient_buckets(self) -> list[int]:
        """Returns the bytes of buckets of gradients that the table shows no communication of; none where none are."""
        dp = self.mesh.dp
        if dp == 1 or any(call.collective in _REDUCE for call in self.profile.calls):
            return []
        rows = self.profile.rows
        if not self._phases() & {Phase.BACKWARD, Phase.OPTIMIZER} and not rows.of(RowKind.NODE, RowKind.ENGINE):
            text = f"the table has no backward pass: nothing is reduced over dp={dp}"
            self.sizes.notes.append(Diagnostic("warning", "not-recorded", text))
            return []
        elements = self.sizes.count("params")
        if elements is None:
            self.sizes.need("params")
            raise missing_error(self.sizes, (), self.path, str(self.mesh))
        if self.mesh.ep == 1:
            elements += self.sizes.count("moe.params") or 0
        buckets = even_ddp_buckets(elements * self.sizes.element_bytes())
        self.sizes.notes.append(Diagnostic("note", "assumed", self._reduced_note(buckets, self._overlaps())))
        return buckets

    def _overlaps(self) -> bool:
        """Returns whether gradients are reduced under the backward. They come evenly over it."""
        asked = self.options.overlap
        under = self.sizes.under_backward() if asked is None else Overlap.GRAD in asked
        return under and self._backward_s() > 0

    def _overlaps_shown(self) -> bool:
        """Returns whether reductions that the table shows run under the backward."""
        return bool(self.options.overlap) and self._backward_s() > 0

    def _backward_s(self) -> float:
        return self.profile.device.by_phase().get(Phase.BACKWARD, 0.0) / self.steps

    def _cuts(self, calls: Sequence[Call], computed_s: float) -> tuple[Cut, ...]:
        """Returns reductions of gradients, each when the share of the backward that fills it is done."""
        cuts, ready, total = [], 0, sum(call.bytes for call in calls)
        for call in calls:
            ready += call.bytes
            share = self._backward_s() / computed_s * ready / total if self._overlaps() and computed_s else 1.0
            cuts.append(Cut(0, share, (call,)))
        return tuple(cuts)

    def _reduced_note(self, sizes: Sequence[int], under: bool) -> str:
        given = self.sizes.given
        source = "--set params" if "params" in self.sizes.typed else f"parameters of {given.get('model', '')}"
        count = "1 bucket" if len(sizes) == 1 else f"{len(sizes):,} buckets"
        most = format_bytes(max(sizes))
        how = "spread evenly under the backward" if under else "all of them after the backward"
        return (
            f"the table has no communication: gradients ({sum(sizes) / 1e9:.2f} GB, {source}, {self.sizes.dtype()}) "
            f"are all-reduced over dp={self.mesh.dp} in {count} of {most} as DDP does, {how} (--overlap none|grad)"
        )

    def _phases(self) -> set[Phase]:
        return {part.phase for part in self.profile.device.parts}

    def _sized(self) -> list[SizedCall]:
        """The collectives of the table, each with its group and the bytes of a call, but those in groups of one."""
        counts = {call.collective: call.calls for call in self.profile.calls}
        scatters = counts.get(Collective.REDUCE_SCATTER, 0)
        units = (
            max(scatters // self.steps, 1) if scatters else max(counts.get(Collective.ALL_GATHER, 0) // self.steps, 1)
        )
        sized: list[SizedCall] = []
        unsized: list[TableCollective] = []
        for called in self.profile.calls:
            axis = self._axis(called.collective)
            if axis is None or self.mesh.size(axis) == 1:
                continue
            size = call_bytes(called, self.sizes, units, bool(scatters))
            if size is None:
                unsized.append(called)
            else:
                sized.append(SizedCall(called, axis, size))
        if self.sizes.missing:
            raise missing_error(self.sizes, unsized, self.path, str(self.mesh))
        check_calls(sized, self.steps, self.profile.table)
        for called in unsized:
            text = f"{called.name} ×{called.calls}: left out, since a table does not say between whom or how large"
            self.sizes.notes.append(Diagnostic("warning", "not-recorded", text))
        return sized

    def _axis(self, collective: Collective) -> str | None:
        """Returns the group of a collective, or None for transfers between two ranks.

        Tokens go over ep, parameters and gradients over dp, or over shard where it is given.
        """
        if collective in (Collective.NONE, Collective.TRANSFER):
            return None
        if collective is Collective.ALL_TO_ALL:
            return "ep"
        sharded = collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER) and self.mesh.shard is not None
        return "shard" if sharded else "dp"

    def _computed(self, calls: StepCalls, phase: Phase) -> list[Item]:
        """Returns the computation of one phase, experts between tokens coming and going."""
        device = self.profile.device
        parts = [part for part in device.parts if part.phase is phase and part.kind is not WorkKind.COMMUNICATION]
        exchanges = phase in (Phase.FORWARD, Phase.BACKWARD)
        experts = next((number for number, part in enumerate(parts) if part.kind is WorkKind.MOE_EXPERT), len(parts))
        items: list[Item] = []
        for number, part in enumerate(parts):
            if number == experts and exchanges:
                items += calls.exchange(phase, "dispatch")
            items.append(Compute(_name(part), phase, seconds=part.device_s / self.steps, source=RECORDED))
            if number == experts and exchanges:
                items += calls.exchange(phase, "combine")
        if experts == len(parts) and exchanges:
            items += [*calls.exchange(phase, "dispatch"), *calls.exchange(phase, "combine")]
        return items

    def _end(
        self, calls: StepCalls, sized: Sequence[SizedCall], *, overlapped: bool, unknown: bool
    ) -> tuple[EndItem, ...]:
        """Returns what follows the backward: gradients, the optimizer, what has no phase, and the host's own time."""
        items: list[Item] = [] if overlapped else list(calls.reduce())
        items += [*self._replica_reductions(sized), *self._computed(calls, Phase.OPTIMIZER)]
        if not unknown:
            items += self._computed(calls, Phase.NONE)
        items += calls.rest()
        end = [EndItem(item) for item in items]
        if overlapped:
            end.insert(0, EndItem(_instant("gradients reduced", Phase.BACKWARD), after_reductions=True))
        if self._has_host():
            # The last kernel is launched when the host is done, and a step begins where the one before it ended.
            host = len(end)
            end.append(EndItem(HostWork("host", self.profile.host.work_s, RECORDED), "host"))
            end.append(EndItem(_instant("step end", Phase.NONE), after=(host,), before_item=host))
        return tuple(end)

    def _replica_reductions(self, sized: Sequence[SizedCall]) -> list[Item]:
        """Returns gradients of copies of shards and experts, which the table need not show."""
        mesh, items = self.mesh, list[Item]()
        scattered = next((item for item in sized if item.called.collective is Collective.REDUCE_SCATTER), None)
        if scattered and mesh.replicate > 1:
            size = -(-scattered.bytes * scattered.called.calls // (self.steps * mesh.size("shard")))
            items.append(Call("gradients of replicas", Phase.BACKWARD, Collective.ALL_REDUCE, "replicate", size))
        parameters = self.sizes.count("moe.params")
        if (self._has_experts() or mesh.ep > 1) and mesh.edp > 1 and parameters:
            size = parameters * self.sizes.element_bytes()
            items.append(Call("gradients of experts", Phase.BACKWARD, Collective.ALL_REDUCE, "edp", size))
        return items

    def _has_experts(self) -> bool:
        return any(call.collective is Collective.ALL_TO_ALL for call in self.profile.calls)

    def _has_host(self) -> bool:
        """Whether the host's work is known well enough to hold the device up: that of a first step is not."""
        host = self.profile.host
        return self.options.host != "none" and host.work_s > 0 and not host.start_up_s

    def _report(self, sized: list[SizedCall]) -> list[Diagnostic]:
        """Reports what is assumed, and what is missing."""
        profile = self.profile
        warnings = [("as-recorded", _COMPUTE_STAYS)]
        if sized and not self._overlaps_shown():
            warnings.append(("assumed", _NO_OVERLAP))
        warnings += self._left_out(sized)
        notes = [self._host_note()]
        if sized:
            each = listed([_where_to(item, self.mesh) for item in sized])
            notes.append(("repriced", f"communication: {each}"))
        if self.steps > 1 or profile.host.steps_from.startswith("nothing"):
            source = "--set steps" if "steps" in self.sizes.given else profile.host.steps_from
            text = f"the table holds {self.steps} step{'s' * (self.steps > 1)} ({source}); times are those of one"
            notes.append(("guessed", text))
        return [
            *(Diagnostic("warning", code, text) for code, text in warnings),
            *(Diagnostic("note", code, text) for code, text in notes),
        ]

    def _left_out(self, sized: list[SizedCall]) -> list[tuple[str, str]]:
        profile, mesh = self.profile, self.mesh
        texts: list[tuple[str, str]] = []
        table = profile.table
        # Some versions add up ops, kernels and ranges on the device below the table, so all rows are compared with it.
        device_s = sum(row.self_device_s or 0.0 for row in table.rows)
        for device, rows_s, stated_s in (
            ("host", profile.host.self_sum_s, table.self_cpu_total_s),
            (table.device, device_s, table.self_device_total_s),
        ):
            if stated_s and rows_s < _MIN_SHOWN * stated_s and not table.top_level_only:
                text = (
                    f"rows take {format_time(rows_s)} of {format_time(stated_s)} on the {device}, the total below the "
                )
                texts.append(("not-recorded", f"{text}table: row_limit=-1 shows all rows, or a unit is mistaken"))
        if profile.calls and mesh.world == 1:
            names = listed([f"{call.name} ×{call.calls}" for call in profile.calls])
            text = f"communication is missing ({names}): a table does not hold its bytes; give --cluster and --mesh"
            texts.append(("not-recorded", text))
        sent = {id(item.called) for item in sized}
        alone = [call.name for call in profile.calls if mesh.world > 1 and id(call) not in sent]
        if alone:
            texts.append(("odd-input", f"{listed(alone)}: nothing to send on the mesh {mesh}"))
        if mesh.ep > 1 and not self._has_experts():
            text = f"the table has no all-to-all: on ep={mesh.ep} no token goes to another GPU's experts"
            texts.append(("not-modelled", text))
        if self._has_experts() and mesh.edp > 1 and self.sizes.count("moe.params") is None:
            text = (
                f"gradients of experts over their {mesh.edp} copies are left out (--set moe.params=…, those of one GPU)"
            )
            texts.append(("not-modelled", text))
        recorded = sum(part.device_s for part in profile.device.parts if part.kind is WorkKind.COMMUNICATION)
        if recorded:
            text = (
                f"{format_time(recorded / self.steps)} of recorded communication kernels a step is left out: waits for "
                "partners are in it, and how much ran beside computation is not known"
            )
            texts.append(("not-modelled", text))
        if self.sizes.unused():
            texts.append(("field-ignored", f"not used here: --set {', '.join(self.sizes.unused())}"))
        return texts

    def _host_note(self) -> tuple[str, str]:
        host = self.profile.host
        if self._has_host():
            return "as-recorded", (
                f"the host's own work, {format_time(host.work_s)} a step as profiled, runs beside the device "
                "(--what-if no-host-gaps leaves it out)"
            )
        if host.start_up_s > 0:
            return "not-modelled", (
                f"the host is left out: this was a first step, with {format_time(host.start_up_s)} of start-up in "
                f"{host.start_up_row}, and {format_time(host.work_s)} of work that is not a later step's either"
            )
        return "not-modelled", "the host is left out"


def _where_to(item: SizedCall, mesh: Mesh) -> str:
    called = f"{item.called.name} ×{item.called.calls}"
    return f"{called} of {format_bytes(item.bytes)} over {item.axis} ({mesh.size(item.axis)})"


def _name(part: TablePart) -> str:
    return f"{part.name}, the rest" if part.rest else part.name


def _bucket(size: int) -> Call:
    return Call("reduce gradients", Phase.BACKWARD, Collective.ALL_REDUCE, "dp", size)


def _instant(name: str, phase: Phase) -> Compute:
    return Compute(name, phase, seconds=0.0, source=RECORDED)
