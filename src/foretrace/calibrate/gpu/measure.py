"""Measures a GPU: parts in the order of their importance until time is up, saved as they are done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from foretrace.calibrate.gpu import attention, fused, gemms, streams
from foretrace.calibrate.gpu.case import Bench, Case, CaseSet
from foretrace.calibrate.gpu.host import host_facts
from foretrace.calibrate.gpu.machine import facts_of
from foretrace.calibrate.gpu.monitor import Monitor
from foretrace.calibrate.gpu.timing import Clock, Heater, Prepared, bursts, prepare, sustained
from foretrace.cost.kernels.kernel_profile import KernelTimes, write_profile
from foretrace.program.kernels import kernel_text

GROUP: Final = 40
"""Kernels measured in one stream."""
MEMORY_SHARE: Final = 0.35
"""Part of the GPU's memory that a group's operands may take."""
QUICK_EVERY: Final = 6
MAX_REMARKS: Final = 60

Say = Callable[[str], None]


def all_parts() -> list[CaseSet]:
    """The parts that are measured, most important first."""
    return [
        CaseSet("linear layers", gemms.layer_gemms()),
        CaseSet("elementwise", streams.elementwise()),
        CaseSet("norms", streams.norms()),
        CaseSet("attention, cuDNN", attention.attentions("cudnn")),
        CaseSet("optimizers", streams.optimizers()),
        CaseSet("losses", streams.losses()),
        CaseSet("embeddings and routing", streams.lookups()),
        CaseSet("GEMM grid, forward", gemms.grid_forward()),
        CaseSet("attention, FlashAttention-2", attention.attentions("flash2")),
        CaseSet("GEMM grid, backward", gemms.grid_backward()),
        CaseSet("fp8", gemms.fp8_gemms()),
        CaseSet("batched GEMM", gemms.batched_gemms()),
        CaseSet("grouped GEMM", gemms.grouped_gemms()),
        CaseSet("accumulating GEMM", gemms.accumulating_gemms()),
        CaseSet("fused kernels", fused.fused()),
        CaseSet("copies to and from the host", streams.copies()),
        CaseSet("fp16, tf32, fp32", gemms.other_gemms()),
    ]


@dataclass(slots=True)
class Session:
    """One run of measurements and what it has found so far."""

    bench: Bench
    clock: Clock
    monitor: Monitor
    heater: Heater
    out: Path
    ends_at: float
    say: Say
    facts: dict[str, str]
    memory_bytes: float
    done: list[KernelTimes] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    failures: int = 0

    @property
    def over(self) -> bool:
        """Whether time is up."""
        return time.monotonic() >= self.ends_at

    def fail(self, case: Case, error: Exception) -> None:
        """Notes why a kernel could not be measured."""
        self.failures += 1
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        if len(self.remarks) < MAX_REMARKS:
            self.remarks.append(f"not measured: {kernel_text(case.kernel)}: {reason}")
        self.say(f"  failed: {kernel_text(case.kernel)}: {reason}")

    def save(self) -> None:
        """Writes the profile of all kernels measured so far."""
        facts = {**self.facts, "kernels": str(len(self.done)), "kernels_failed": str(self.failures)}
        write_profile(self.out, facts, self.done, self.remarks)


def measure_gpu(bench: Bench, out: Path, minutes: float, quick: bool, say: Say, only: Sequence[str] = ()) -> int:
    """Measures until all is done or time is up, writing a profile to `out`; returns how many kernels it holds. `only`
    leaves out all parts but those in whose name one of these occurs."""
    began = time.monotonic()
    clock = Clock(bench)
    memory_bytes = MEMORY_SHARE * bench.torch.cuda.get_device_properties(0).total_memory
    monitor = Monitor()
    try:
        session = Session(
            bench, clock, monitor, Heater(bench, clock), out, began + 60 * minutes, say, facts_of(bench), memory_bytes
        )
        session.facts |= host_facts(bench, clock)
        session.save()  # a file that cannot be written is better known before than after
        for part in all_parts():
            if only and not any(word in part.name for word in only):
                continue
            cases = part.cases[::QUICK_EVERY] if quick else part.cases
            measure_part(session, part.name, cases)
            say(f"{time.monotonic() - began:5.0f} s  {part.name}: {len(session.done)} kernels so far")
            if session.over:
                session.remarks.append(f"time was up after {part.name}")
                break
        session.save()
        return len(session.done)
    finally:
        monitor.close()


def measure_part(session: Session, name: str, cases: Sequence[Case]) -> None:
    """Measures cases in groups that fit into memory."""
    known = {times.kernel for times in session.done}
    group: list[Prepared] = []
    for case in cases:
        if session.over:
            break
        if case.kernel in known:
            continue
        known.add(case.kernel)
        try:
            group.append(prepare(case, session.bench, session.clock))
        except Exception as error:  # whatever a library cannot do is noted, and the rest goes on
            session.fail(case, error)
            _check_alive(session)
        if len(group) >= GROUP or session.bench.allocated_bytes() > session.memory_bytes:
            measure_group(session, name, group)
            group = []
    if group:
        measure_group(session, name, group)


def measure_group(session: Session, name: str, group: list[Prepared]) -> None:
    """Burst, then sustained; saves what was found and lets go of the operands."""
    try:
        alone_s = bursts(group, session.heater, session.clock)
        start = time.monotonic()
        amid_s = sustained(group, session.heater, session.clock)
        clock_mhz, power_w = session.monitor.mean(start + 0.3, time.monotonic())
    except Exception as error:  # as above
        for prepared in group:
            session.fail(prepared.case, error)
        _check_alive(session)
    else:
        session.done += [
            KernelTimes(prepared.case.kernel, alone, amid, clock_mhz, power_w)
            for prepared, alone, amid in zip(group, alone_s, amid_s, strict=True)
        ]
        session.say(f"  {name}: {len(group)} kernels at {clock_mhz:.0f} MHz, {power_w:.0f} W")
    group.clear()
    session.bench.torch.cuda.empty_cache()
    session.save()


def _check_alive(session: Session) -> None:
    """After some errors a CUDA context is lost for good: then what was measured is kept and the rest given up."""
    try:
        session.bench.normal(8).sum()
        session.clock.wait()
    except Exception:  # any error here means just that
        session.remarks.append("the GPU's context was lost: nothing more was measured")
        session.ends_at = 0.0
