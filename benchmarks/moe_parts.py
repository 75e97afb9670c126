"""Shows where the time of mixtures of experts goes, next to facts published apart from any training step.

    python benchmarks/moe_parts.py [--update]

Predicts five published runs of the development table (`$FORETRACE_SHARED` or `../shared`) and prints the time of a step
by what is computed, sent and waited for, with the rate that each part comes out at. `--update` writes the tables of
docs/accuracy.md.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import foretrace as ft
from accuracy import TABLE, Table, write_page
from foretrace.cost.unit_costs import MeshPrices, UnitPricer, items_in
from foretrace.inputs.model.input import ModelInput
from foretrace.program.columns import Collective
from foretrace.program.kernels import Attention, Gemm, GroupedGemm, Kernel
from foretrace.readings.answer.answer import Answer
from foretrace.schedules import ActionKind
from foretrace.simulation.simulate_input import on_host
from foretrace.step.spec import Call, Compute, Item
from foretrace.validate.rows import RowJob, job_of
from foretrace.validate.training_runs import read_training_runs
from foretrace.workload.settle import settle
from foretrace.workload.step_spec import chunks_of, works_of

BEGIN = "<!-- written by benchmarks/moe_parts.py --update -->\n"
ROWS = {
    "MBR-26.04-135": "DeepSeek-V3, 256 GB200, mxfp8",
    "MBR-26.04-136": "DeepSeek-V3, 256 B300, mxfp8",
    "MBR-26.04-149": "Qwen3 235B, 256 GB200, mxfp8",
    "MBR-26.04-139": "GPT-OSS 120B, 64 GB200, bf16",
    "MBR-26.04-151": "Qwen3 235B, 256 H100, fp8",
}
"""Rows that are taken apart."""

PARTS = ("products", "grouped products", "attention", "pointwise", "dispatch", "other calls", "bubble", "host")


@dataclass(slots=True)
class Part:
    """Seconds of one rank and step, with the FLOPs or bytes that they took."""

    seconds: float = 0.0
    amount: float = 0.0


def parts_of(job: RowJob, answer: Answer) -> dict[str, Part]:
    """Returns the parts of a step, as a mean over stages; calls count whether or not something runs next to them."""
    machine = ft.Machine(job.cluster)
    setting = on_host(settle(job.model, job.plan), machine)
    prices = UnitPricer(machine, setting.plan.gpus).on(setting.mesh)
    parts = {name: Part() for name in PARTS}
    passes = setting.microbatches / setting.plan.pp
    for chunk in chunks_of(setting, works_of(setting)):
        for unit in chunk.units:
            for kind in (ActionKind.FORWARD, ActionKind.BACKWARD):
                items = items_in(unit.work, kind, None)
                prices.learn_items(items)
                for item in items:
                    _count(parts, prices, item, passes)
    parts["bubble"].seconds = sum(answer.breakdown.mean_s.get(name, 0.0) for name in ("bubble", "imbalance"))
    parts["host"].seconds = answer.breakdown.mean_s.get("host", 0.0)
    parts["host"].amount = max((lane.busy for lane in answer.lanes if lane.lane == "host"), default=0.0)
    return parts


def _count(parts: dict[str, Part], prices: MeshPrices, item: Item, passes: float) -> None:
    if isinstance(item, Call):
        dispatch = item.axis == "ep" and item.collective == Collective.ALL_TO_ALL
        part = parts["dispatch" if dispatch else "other calls"]
        part.seconds += passes * prices.seconds(item)
        part.amount += passes * item.bytes
    elif isinstance(item, Compute):
        for count, kernel in item.kernels:
            part = parts[_kind(kernel)]
            seconds = prices.compute_s(Compute(item.name, item.phase, ((1, kernel),)))
            part.seconds += passes * count * seconds
            flops = isinstance(kernel, Gemm | GroupedGemm | Attention)
            part.amount += passes * count * (kernel.flops if flops else kernel.moved_bytes)


def _kind(kernel: Kernel) -> str:
    if isinstance(kernel, GroupedGemm):
        return "grouped products"
    if isinstance(kernel, Gemm):
        return "products"
    return "attention" if isinstance(kernel, Attention) else "pointwise"


def rate_text(name: str, part: Part) -> str:
    """Returns the rate of a part in words."""
    if not part.seconds and name != "host":
        return "–"
    if name in ("products", "grouped products", "attention"):
        return f"{part.amount / part.seconds / 1e12:,.0f} TFLOP/s"
    if name in ("pointwise", "dispatch", "other calls"):
        return f"{part.amount / part.seconds / 1e9:,.0f} GB/s"
    return f"launches {100 * part.amount:.0f} % of the step" if name == "host" else ""


def _against(predicted: float, measured: float | None) -> list[str]:
    """Returns the cells of a step: measured, predicted, error."""
    if measured is None:
        return ["", f"{predicted:.2f}", ""]
    error = f"{100 * (predicted / measured - 1):+.0f} %".replace("-", "−")
    return [f"{measured:.2f}", f"{predicted:.2f}", error]


def main() -> None:
    """Predicts the rows and prints their parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--update", action="store_true", help="write the tables of docs/accuracy.md")
    options = parser.parse_args()
    if not TABLE.exists():
        print(f"{TABLE.name}: not there; nothing to take apart")
        return
    runs = {run.config.id: run for run in read_training_runs(TABLE).runs}
    lines, rates = [], []
    for name, title in ROWS.items():
        job = job_of(runs[name].config)
        answer = ft.simulate(ModelInput(job.model, job.plan), ft.Machine(job.cluster), explain=False)
        parts = parts_of(job, answer)
        measured = runs[name].measurement.step_s
        cells = [f"{parts[part].seconds:.2f}" for part in PARTS]
        lines.append([title, *_against(answer.step_time_s, measured), *cells])
        rates.append([title, *(rate_text(part, parts[part]) for part in PARTS if part != "bubble")])
    tables = [
        Table("Parts of five steps, in seconds of a rank", ["run", "measured", "predicted", "error", *PARTS], lines),
        Table("Rates of these parts", ["run", *(part for part in PARTS if part != "bubble")], rates),
    ]
    print("\n".join(table.text() for table in tables))
    if options.update:
        write_page(tables, BEGIN)


if __name__ == "__main__":
    main()
