"""What the planner shows: how fast it searches, whether its laws hold, and where published plans stand among its own.

    python benchmarks/planner.py [--only space,rate,small,laws,order,jobs,workers,published] [--calculon DIR] [--update]

Times are CPU seconds. `space` and `jobs` run in processes of their own and count from the start of the process. All
random problems are drawn from fixed seeds. `--calculon` names a checkout of Calculon, which then searches the same
space. `--update` writes the figures into docs/planner.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from foretrace import Machine, Plan, PlanRequest, PriceSources, load_model
from foretrace.basics.errors import ForetraceError
from foretrace.cost.silicon import installed
from foretrace.search.planner.closed_form import ClosedForm
from foretrace.search.planner.memory.memory_table import MemoryTable
from foretrace.search.planner.proof import plan_key, rounded
from foretrace.search.planner.request import GIVEN_FIELDS
from foretrace.search.planner.result import PlanSearch
from foretrace.search.planner.search import search_plans
from foretrace.search.planner.simulator import PlanSimulator
from foretrace.search.planner.space import Space
from planner_spaces import (
    BATCH,
    CALCULON_EXECUTIONS,
    CALCULON_TIERS,
    GPUS,
    JOBS,
    Job,
    calculon_request,
    calculon_space,
    law_tables,
    small_problems,
)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "planner.md"
BEGIN, END = "<!-- written by benchmarks/planner.py --update -->\n", "<!-- end -->"
MAX_EXCESS = 1e-8
ROWS = 1_000_000
PROBLEMS = 100
MAX_PLANS = 60
"""Plans of a small problem that fit; others are drawn again."""
LAW_ROWS = 300
"""Plans of each model whose bounds are checked."""
ORDER_STRIDE = 4
"""Of the plans of Calculon's space that fit, every fourth is simulated."""
BEST = 100
JOB_TIME_S = 120
"""Seconds after which a search of the default space stops, so that the whole benchmark ends."""
PUBLISHED = ("korthikanti", "nemo", "megatron-bridge")
PUBLISHED_EACH = 3


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: what was measured, its value as text, and the target if there is one."""

    what: str
    value: str
    target: str = ""
    is_met: bool | None = None

    @property
    def cells(self) -> list[str]:
        """The cells of its line."""
        return [self.what, self.value, self.target, "" if self.is_met is None else "met" if self.is_met else "MISSED"]


class Silence:
    """Shows nothing of a search."""

    def begin(self, what: str, count: int) -> None:
        """Begins a part of the work."""

    def reach(self, done: int, place: str = "", best: str = "") -> None:
        """Says how much of the part is finished."""

    def show(self, plans: object) -> None:
        """Offers the plans that were simulated so far."""


def main() -> None:
    """Measures the parts that are asked for, and prints their figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(PARTS), help=f"the parts to measure: {', '.join(PARTS)}")
    parser.add_argument("--calculon", type=Path, help="a checkout of Calculon to compare with")
    parser.add_argument("--update", action="store_true", help="write the figures into docs/planner.md")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(CHILDREN[options.child.split(":")[0]](*options.child.split(":")[1:])))
        return
    figures: list[Figure] = []
    for name in options.only.split(","):
        began = time.monotonic()
        for figure in PARTS[name](options):
            figures.append(figure)
            print("  ".join(cell for cell in figure.cells if cell), flush=True)
        print(f"-- {name}: {time.monotonic() - began:.0f} s", flush=True)
    if options.update:
        write_page(figures)


def machine(cluster: str = "h100-dgx") -> Machine:
    """Returns a machine with the best prices that are installed."""
    return Machine(cluster, prices=PriceSources(silicon=installed()))


def in_process(child: str) -> dict[str, Any]:
    """Runs a part of this script in a process of its own and returns what it prints."""
    words = [sys.executable, __file__, "--child", child]
    result = subprocess.run(
        words, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "0"}
    )
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def search(request: PlanRequest, model: Any, on: Machine, space: Space | None = None) -> PlanSearch:
    """Searches without a word."""
    return search_plans(model, on, request, progress=Silence(), space=space)


# a. Calculon's space


def space_child() -> dict[str, Any]:
    """Searches Calculon's space in this process."""
    model, space = calculon_space()
    result = search(calculon_request(), model, machine(), space)
    assert result.best is not None
    return {
        "searched": result.searched,
        "distinct": result.distinct,
        "feasible": result.feasible,
        "complete": result.search.complete,
        "simulations": result.search.simulations,
        "actions": result.search.action_runs,
        "options": result.best.options,
        "step_s": result.best.step_time_s,
        "parts": dict(result.seconds),
        "cpu_s": time.process_time(),
    }


def measure_space(options: argparse.Namespace) -> Iterator[Figure]:
    """Yields how long a search of Calculon's space takes from the start of the process."""
    runs = [in_process("space") for _ in range(2)]
    best = min(runs, key=lambda run: float(run["cpu_s"]))
    counts = f"{CALCULON_EXECUTIONS:,} executions, {CALCULON_TIERS:,} without network tiers"
    yield Figure(
        f"GPT-3 175B, {GPUS:,} H100, batch {BATCH:,}: Calculon's space",
        f"{counts}; {best['searched']:,} distinct for us, {best['distinct']:,} launchable, {best['feasible']:,} fit",
    )
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in best["parts"].items())
    yield Figure("  CPU s from process start to a complete search", f"{best['cpu_s']:.2f} s ({parts})", "≤ 6 s",
                 best["complete"] and best["cpu_s"] <= 6)  # fmt: skip
    yield Figure("  simulations; runs at the level of actions", f"{best['simulations']}; {best['actions']}")
    yield Figure("  winner", f"{best['step_s']:.4f} s: {best['options']}")
    yield calculon(options.calculon)


def calculon(checkout: Path | None) -> Figure:
    """Runs Calculon's own search, as its README and `llm-optimal-execution --help` say."""
    what = "  Calculon itself"
    if checkout is None or not (checkout / "bin" / "calculon").exists():
        return Figure(what, "not run: name a checkout with --calculon; published here: 298.5 s with its logging off")
    system = json.loads((checkout / "systems" / "h100_80g_nvl8.json").read_text())
    system["mem2"]["GiB"] = 0  # no offload tier
    quiet = "import logging, runpy, sys; logging.disable(logging.DEBUG); sys.argv = sys.argv[1:]; "
    quiet += "runpy.run_path(sys.argv[0], run_name='__main__')"
    files = ["models/gpt3-175B.json", str(GPUS), str(BATCH), "float16", "/dev/stdin", "/dev/null"]
    words = [sys.executable, "-c", quiet, "bin/calculon", "llm-optimal-execution", *files, "-c", "1"]
    words += ["--no-tp-overlap", "--no-dp-overlap"]
    before = os.times()
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        words, cwd=checkout, input=json.dumps(system), capture_output=True, text=True, env=env, check=False
    )
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    if done.returncode:
        return Figure(what, f"failed with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return Figure(what, f"{seconds:.1f} CPU s, {CALCULON_EXECUTIONS / seconds:,.0f} executions per CPU s")


# b. The rate of the closed form


def measure_rate(_: argparse.Namespace) -> Iterator[Figure]:
    """Yields how many plans are evaluated in a second of CPU time."""
    model, space = calculon_space()
    on = machine()
    table = space.enumerate().table
    closed_form, memory = ClosedForm(model, on), MemoryTable(model, on)
    began = time.process_time()
    memory.needs(table)
    closed_form.bounds(table)
    all_in_s = time.process_time() - began
    repeated = table.select(np.tile(np.arange(len(table)), -(-ROWS // len(table))))
    best_s, memory_s = float("inf"), 0.0
    for _attempt in range(3):
        began = time.process_time()
        memory.needs(repeated)
        between = time.process_time()
        closed_form.bounds(repeated)
        seconds = time.process_time() - began
        if seconds < best_s:
            best_s, memory_s = seconds, between - began
    rate = len(repeated) / best_s
    yield Figure(
        "closed form with memory check, keys known",
        f"{rate:,.0f} plans per CPU s ({len(repeated):,} rows that repeat {len(table):,} plans; memory "
        f"{memory_s / best_s:.0%})",
        "≥ 1,000,000",
        rate >= 1_000_000,
    )
    yield Figure("  all-in, keys priced on the way", f"{len(table) / all_in_s:,.0f} plans per CPU s")


# c. Small problems against brute force


def measure_small(_: argparse.Namespace) -> Iterator[Figure]:
    """Yields how often the winner of a search is that of a simulation of all plans."""
    on = machine()
    right, simulations, plans, asked = 0, [], 0, 0
    for problem in small_problems(10 * PROBLEMS):
        if len(simulations) == PROBLEMS:
            break
        found = brute_force(problem, on)
        if found is None:
            continue
        winner, count = found
        result = search(problem.request, problem.model, on)
        same = result.best is not None and result.search.complete and result.best.plan == winner
        right, plans, asked = right + same, plans + count, asked + 1
        simulations.append(result.search.simulations)
        if not same:
            print(f"  differs: {problem}: {None if result.best is None else result.best.options} is not {winner}")
    mean = float(np.mean(simulations))
    yield Figure(f"winner of brute force found in {asked} small problems ({plans:,} plans)", f"{right}", f"{PROBLEMS}",
                 right == asked == PROBLEMS)  # fmt: skip
    yield Figure("  simulations of a search", f"{mean:.2f} on average, {max(simulations)} at most", "≤ 6", mean <= 6)


def brute_force(problem: Any, on: Machine) -> tuple[Plan, int] | None:
    """Returns the best of all plans and how many fit; None where there are none, one, or too many."""
    from foretrace.search.planner.asked_axes import space_of

    request, model = problem.request, problem.model
    try:
        table = space_of(model, request.plan, on.needed_cluster(), request.axes).enumerate().table
    except ForetraceError:
        return None
    table = table.select(MemoryTable(model, on).needs(table).fits)
    if not 2 <= len(table) <= MAX_PLANS:
        return None
    plans = [table.plan(row) for row in range(len(table))]
    results = PlanSimulator(model, on).run(plans)
    ranks = [
        (rounded(each.step_time_s), each.needed_memory_bytes, plan_key(plan), row)
        for row, (plan, each) in enumerate(zip(plans, results, strict=True))
        if each.fits
    ]
    return (plans[min(ranks)[-1]], len(ranks)) if ranks else None


# d. Laws: bounds and memory; the order of estimates


def measure_laws(_: argparse.Namespace) -> Iterator[Figure]:
    """Yields by how much bounds exceed the simulator at most, and where memory differs."""
    on = machine()
    excess, exact, wrong, below, count, models = -1.0, 0, 0, 0, 0, set()
    for model, table in law_tables(on, LAW_ROWS):
        bounds, memory = ClosedForm(model, on).bounds(table), MemoryTable(model, on).needs(table)
        simulator = PlanSimulator(model, on)
        models.add((model.name, table.base.stack))
        for row in range(len(table)):
            answer = simulator.answer(table.plan(row))
            assert answer.model is not None
            fit = answer.model.memory
            above = float(bounds.bound_s[row]) / answer.step_time_s - 1
            if above > MAX_EXCESS:
                print(f"  bound {above:.1e} above the simulator: {model.name} {table.plan(row)}")
            excess, count = max(excess, above), count + 1
            mine = int(memory.peak_bytes[row]), int(memory.needed_bytes[row])
            real = fit.peak_bytes, fit.needed_bytes
            exact += bool(memory.exact[row])
            wrong += bool(memory.exact[row]) and mine != real
            below += not memory.exact[row] and (mine[0] < real[0] or mine[1] < real[1])
    yield Figure(f"bound above the simulator at most, {count:,} plans of {len(models)} models and stacks",
                 f"{max(excess, 0.0):.1e}", "≤ 1e-8", excess <= MAX_EXCESS)  # fmt: skip
    yield Figure(f"  memory not to the byte, of {exact:,} plans (ZeRO 0-2)", f"{wrong}", "0", wrong == 0)
    yield Figure(f"  memory below the simulator, of {count - exact:,} plans (ZeRO-3)", f"{below}", "0", below == 0)


def measure_order(_: argparse.Namespace) -> Iterator[Figure]:
    """Yields how well estimates order plans that fit."""
    model, space = calculon_space()
    on = machine()
    table = space.enumerate().table
    table = table.select(MemoryTable(model, on).needs(table).fits)
    bounds = ClosedForm(model, on).bounds(table)
    tokens = table.column("gbs").astype(float)
    estimates = bounds.estimate_s / tokens
    order = np.argsort(estimates, kind="stable")
    rows = np.unique(np.concatenate([np.arange(0, len(table), ORDER_STRIDE), order[: 3 * BEST // 2]]))
    with PlanSimulator(model, on, workers=2) as simulator:
        results = simulator.run([table.plan(row) for row in rows.tolist()])
    steps = np.array([result.step_time_s for result in results]) / tokens[rows]
    spread = rows % ORDER_STRIDE == 0
    all_rows = spearman(estimates[rows][spread], steps[spread])
    best = np.argsort(steps, kind="stable")[:BEST]
    near = spearman(estimates[rows][best], steps[best])
    errors = estimates[rows][spread] / steps[spread] - 1
    yield Figure(f"Spearman of estimate and simulation, {int(spread.sum()):,} plans that fit", f"{all_rows:.4f}",
                 "≥ 0.995", all_rows >= 0.995)  # fmt: skip
    yield Figure(f"  within the best {BEST} of {len(rows):,} simulated", f"{near:.4f}", "≥ 0.95", near >= 0.95)
    low, middle, high = np.quantile(errors, [0.05, 0.5, 0.95])
    yield Figure("  error of the estimate: mean absolute; 5, 50, 95 %",
                 f"{np.abs(errors).mean():.2%}; {low:+.2%}, {middle:+.2%}, {high:+.2%}")  # fmt: skip


def spearman(first: Any, second: Any) -> float:
    """Returns the rank correlation of two columns; equal values share their mean rank."""
    ranks = []
    for values in (np.asarray(first), np.asarray(second)):
        _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[place])
    return float(np.corrcoef(*ranks)[0, 1])


# e. Searches of the default space


def job_child(number: str) -> dict[str, Any]:
    """Searches the default space of a job in this process."""
    job = JOBS[int(number)]
    result = search(PlanRequest(job.plan, time_s=JOB_TIME_S), load_model(job.model), machine(job.cluster))
    best = result.best
    return {
        "distinct": result.distinct,
        "feasible": result.feasible,
        "complete": result.search.complete,
        "simulations": result.search.simulations,
        "actions": result.search.action_runs,
        "undecided": result.search.undecided,
        "gap": result.search.gap,
        "cpu_s": time.process_time(),
        "step_s": best and best.step_time_s,
        "options": best and best.options,
        "parts": dict(result.seconds),
    }


def measure_jobs(_: argparse.Namespace) -> Iterator[Figure]:
    """Yields what searches of the default space take, and a further simulation."""
    for number, job in enumerate(JOBS):
        yield job_figure(job, in_process(f"job:{number}"))
    model, on = load_model("gpt3-175b"), machine()
    plan = Plan(GPUS, gbs=BATCH, seq_len=2048, tp=4, pp=16, vpp=6, zero=1, stack="megatron-core")
    simulator = PlanSimulator(model, on)
    simulator.answer(plan)
    times = []
    for _attempt in range(5):
        began = time.process_time()
        simulator.answer(plan)
        times.append(time.process_time() - began)
    yield Figure("a further full simulation, GPT-3 tp 4, pp 16, vpp 6", f"{1e3 * min(times):.0f} ms", "≤ 40 ms",
                 min(times) <= 0.04)  # fmt: skip


def job_figure(job: Job, run: dict[str, Any]) -> Figure:
    """Returns the figure of a search."""
    state = "complete" if run["complete"] else f"stopped: {run['undecided']:,} plans left, gap {run['gap']:.2%}"
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in run["parts"].items())
    return Figure(
        job.name,
        f"{run['simulations']} simulations, {run['actions']} runs of actions, {run['cpu_s']:.1f} CPU s, {state}; "
        f"{run['distinct']:,} launchable, {run['feasible']:,} fit; {run['step_s']:.3f} s: {run['options']} ({parts})",
    )


# f. The number of workers


def measure_workers(_: argparse.Namespace) -> Iterator[Figure]:
    """Yields whether the number of workers changes a byte of the result."""
    words = [
        "plan",
        "llama3-8b",
        "--cluster",
        "h100-dgx",
        "--gpus",
        "16",
        "--gbs",
        "64",
        "--seq",
        "8192",
        "--no-offload",
    ]
    words += ["--mbs", "1,2", "--cp", "1", "--json"]
    outputs = set()
    for workers in (1, 2, 8):
        command = [sys.executable, "-m", "foretrace", *words, "--workers", str(workers)]
        text = subprocess.run(command, check=True, capture_output=True).stdout
        answer = json.loads(text)
        answer.get("request", {}).pop("workers", None)  # what was asked for, not what came out
        answer.pop("seconds", None)
        outputs.add(json.dumps(answer))
    yield Figure("results with 1, 2 and 8 workers", f"{len(outputs)} different", "1", len(outputs) == 1)


# g. Published plans


def measure_published(_: argparse.Namespace) -> Iterator[Figure]:
    """Yields where the plans of published runs stand among those of a search.

    The rule: of each of the families Korthikanti, NeMo and Megatron-Bridge, the first rows of the table that are of
    different models, on Hopper or Ampere, and that can be predicted.
    """
    from accuracy import TABLE
    from foretrace.validate.rows import job_of
    from foretrace.validate.training_runs import read_training_runs

    if not TABLE.exists():
        yield Figure("published plans", f"{TABLE.name}: not there")
        return
    for family in PUBLISHED:
        seen: set[str] = set()
        for run in read_training_runs(TABLE).runs:
            config = run.config
            if family not in config.family.lower() or len(seen) == PUBLISHED_EACH or config.model in seen:
                continue
            try:
                row = job_of(config)
                figure = published_figure(config.id, row)
            except ForetraceError:
                continue
            seen.add(config.model)
            yield figure


def published_figure(name: str, row: Any) -> Figure:
    """Returns how a published plan compares with the best of a search for the same job."""
    on = machine().with_(cluster=row.cluster)
    theirs = PlanSimulator(row.model, on).answer(row.plan)
    given = {field: getattr(row.plan, field) for field in GIVEN_FIELDS if field != "stage_layers"}
    result = search(PlanRequest(replace(Plan(row.plan.gpus), **given), time_s=20), row.model, on)
    if result.best is None:
        return Figure(name, f"theirs {theirs.step_time_s:.3f} s; nothing of ours fits")
    faster = sum(plan.step_time_s < theirs.step_time_s for plan in result.plans)
    place = f"behind {faster} of the {len(result.plans)} listed" if faster < len(result.plans) else "behind all listed"
    done = "" if result.search.complete else f", stopped with a gap of {result.search.gap:.1%}"
    return Figure(
        f"{name}: {row.model.name}, {row.plan.gpus} {row.cluster.gpu.name}",
        f"theirs {theirs.step_time_s:.3f} s, ours {result.best.step_time_s:.3f} s "
        f"({theirs.step_time_s / result.best.step_time_s - 1:+.1%}), {place} of {result.feasible:,} that fit{done}: "
        f"{result.best.options}",
    )


def write_page(figures: list[Figure]) -> None:
    """Puts the figures where docs/planner.md has them, if it has a place for them."""
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if BEGIN not in page:
        print(f"{PAGE.name}: has no place for figures")
        return
    before = page.index(BEGIN) + len(BEGIN)
    after = page.index(END, before)
    rows = [["what", "measured", "target", ""], ["---"] * 4, *(figure.cells for figure in figures)]
    written = "\n".join(f"| {' | '.join(cell.strip() for cell in cells)} |" for cells in rows)
    PAGE.write_text(f"{page[:before]}\n{written}\n\n{page[after:]}", encoding="utf-8")
    print(f"{PAGE.name}: {len(figures)} figures written")


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Figure]]] = {
    "space": measure_space,
    "rate": measure_rate,
    "small": measure_small,
    "laws": measure_laws,
    "order": measure_order,
    "jobs": measure_jobs,
    "workers": measure_workers,
    "published": measure_published,
}
CHILDREN: dict[str, Callable[..., dict[str, Any]]] = {"space": space_child, "job": job_child}


if __name__ == "__main__":
    main()
