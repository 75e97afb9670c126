"""How fast Foretrace is, against its targets and against what the machine could do at best.

    python benchmarks/speed.py [--json]

All figures are CPU seconds (best of several runs) of this process. "core" is the core install, "fast" adds numba, once
its code is compiled. The bound of the fixed executor is the memory traffic of its inner step, max(a, b) + duration: two
indices, a duration, two cells read and one written, 48 bytes, at the speed this machine copies arrays with.
"""

from __future__ import annotations

import compileall
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

import foretrace
import jobs
from foretrace import Cluster, Machine, load_cluster, simulate
from foretrace.cost.pricing import price
from foretrace.engine import jit
from foretrace.engine.fixed_run import FixedRun
from foretrace.engine.shared_run import SharedRun
from foretrace.export.perfetto import write_perfetto
from foretrace.inputs.aicb.format import read_workload
from foretrace.program.as_json import to_json
from foretrace.program.expand import expand
from foretrace.program.file import load, save
from foretrace.program.fold import fold, unfold
from foretrace.program.program import Program
from foretrace.report.page.document import report_html
from foretrace.report.views import view_of
from foretrace.simulation.job_memory import static_memory
from foretrace.workload.settle import settle

BYTES_PER_OP = 48


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: what, how much, the target (None: for information) and whether it is met."""

    what: str
    value: float
    unit: str
    target: float | None = None
    at_least: bool = False
    detail: str = ""

    @property
    def within_target(self) -> bool | None:
        """Whether the target is met."""
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


def cpu_seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """The least CPU time of several runs."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def run_fixed(program: Program, folded: bool = True) -> float:
    """Everything from a program to its timeline."""
    ops = expand(program)
    prices = price(ops)
    graph = fold(ops, prices.profile_of) if folded else unfold(ops)
    return FixedRun(graph).timeline(prices.durations(graph)).step_time_s


def arbitrary_ops() -> list[Row]:
    """100,000 ops with random dependencies, on few lanes and on many: the engine, and all from program to timeline."""
    copied = np.zeros(8_000_000)
    bandwidth = 2 * copied.nbytes / cpu_seconds(lambda: copied.copy())
    bound = BYTES_PER_OP * 100_000 / bandwidth
    rows = []
    programs = {f"{lanes} lanes": jobs.arbitrary(100_000, lanes) for lanes in (1, 8, 64, 512)}
    programs["16 ranks that meet"] = jobs.meeting(100_000)
    for shape, program in programs.items():
        ops = expand(program)
        graph = fold(ops)
        durations = price(ops).durations(graph)
        for name, fast, target in (("core", False, 0.150), ("fast", True, 0.020)):
            jit.use(fast)
            run_fixed(program)
            seconds = cpu_seconds(lambda graph=graph, durations=durations: FixedRun(graph).timeline(durations))
            whole = cpu_seconds(lambda program=program: run_fixed(program))
            detail = f"{100_000 / seconds / 1e6:.2f} M ops/s, {seconds / bound:,.0f}× the {bound * 1e3:.2f} ms bound; "
            detail += f"{whole:.3f} s from program to timeline"
            rows.append(Row(f"100,000 ops on {shape}, {name}", seconds, "s", target, detail=detail))
    jit.use(False)
    return rows


def whole_answers() -> list[Row]:
    """Everything `foretrace simulate` works out: timeline, breakdown, path, memory, gains and band."""
    rows = []
    for name, program in (
        ("100,000 ops on 64 lanes", jobs.arbitrary(100_000, 64)),
        ("16 stages × 512 microbatches, 100,096 GPUs", jobs.pipeline_job(16, 512)),
    ):
        seconds = cpu_seconds(lambda program=program: simulate(program).to_dict(), 2)
        rows.append(Row(f"whole answer, {name}, core", seconds, "s"))
    return rows


def unfolded_ranks() -> list[Row]:
    """1,024 ranks × 2,800 ops, each rank simulated on its own, with collectives in groups of 8 and 64."""
    program = jobs.replicated(2_800)
    seconds = cpu_seconds(lambda: run_fixed(program, folded=False), 2)
    code = "import sys; sys.path.insert(0, 'benchmarks'); import jobs, speed; speed.jit.use(False); "
    code += "speed.run_fixed(jobs.replicated(2_800), folded=False); import resource; "
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return [
        Row("1,024 ranks × 2,800 ops unfolded, core", seconds, "s", 3.0, detail=f"{2.867 / seconds:.2f} M ops/s"),
        Row("… its memory", int(output) * 1024 / 1e9, "GB", 2.0),
    ]


def scenarios() -> list[Row]:
    """One run with 100 scenarios against a run with one."""
    program = jobs.arbitrary(100_000, 64)
    ops = expand(program)
    graph = fold(ops)
    durations = price(ops).durations(graph)
    many = durations[:, None] * np.random.default_rng(0).uniform(0.9, 1.1, (len(graph), 100))
    single = cpu_seconds(lambda: FixedRun(graph).step_times(durations[:, None]))
    hundred = cpu_seconds(lambda: FixedRun(graph).step_times(many), 2)
    return [
        Row(
            "100 scenarios ÷ 1 scenario",
            hundred / single,
            "×",
            10.0,
            detail=f"{single * 1e3:.0f} ms and {hundred:.2f} s",
        )
    ]


def folded_job() -> list[Row]:
    """16 stages × 512 microbatches on 100,096 GPUs."""
    start = time.process_time()
    program = jobs.pipeline_job(16, 512)
    built = time.process_time() - start
    seconds = cpu_seconds(lambda: run_fixed(program))
    nodes = len(fold(expand(program)))
    detail = f"{program.op_count / 1e6:,.0f} M ops on {program.world:,} ranks, folded to {nodes:,}; "
    detail += f"building it took {built:.2f} s"
    return [Row("16 stages × 512 microbatches, 100,096 GPUs, folded", seconds, "s", 0.3, detail=detail)]


def shared_events() -> list[Row]:
    """Events per second of the shared executor: pairs of ranks that meet on links again and again."""
    program = jobs.sharing(64, 60)
    ops = expand(program)
    graph, prices = unfold(ops), price(ops)
    rows = []
    durations = prices.durations(graph)
    for name, fast, target in (("core", False, 30_000.0), ("fast", True, 300_000.0)):
        jit.use(fast)
        run = SharedRun(graph, prices.latencies(graph), prices.draws)
        run.timeline(durations)
        seconds = cpu_seconds(lambda run=run: run.timeline(durations), 3)
        detail = f"{run.events:,} events, {len(graph):,} ops"
        rows.append(Row(f"shared executor, {name}", run.events / seconds, "events/s", target, True, detail))
    jit.use(False)
    return rows


def growth() -> list[Row]:
    """The time per op of a large program against that of a small one: 1 where growth is linear, more where a larger
    program falls out of the caches."""
    sizes = (100_000, 400_000)
    programs = [jobs.arbitrary(size, 64) for size in sizes]
    small, large = (cpu_seconds(lambda program=program: run_fixed(program)) for program in programs)
    detail = f"{small:.3f} s for 100,000 ops, {large:.3f} s for 400,000"
    return [Row("time per op at 400,000 ops ÷ at 100,000", large / small / 4, "×", 1.5, detail=detail)]


def help_time() -> list[Row]:
    """CPU time of `foretrace --help`, a process of its own."""
    words = [sys.executable, "-m", "foretrace", "--help"]
    seconds = child_seconds(lambda: subprocess.run(words, capture_output=True, check=True), 5)
    return [Row("foretrace --help", seconds, "s", 0.25)]


def files() -> list[Row]:
    """Program files against the JSON of the same program, and the Perfetto writer."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.foretrace"
        for name, program in (
            ("a pipeline", jobs.pipeline_job(16, 512)),
            ("100,000 arbitrary ops", jobs.arbitrary(100_000, 64)),
        ):
            saved = cpu_seconds(lambda program=program: save(program, path), 2)
            loaded = cpu_seconds(lambda: load(path), 2)
            size, plain = path.stat().st_size, len(json.dumps(to_json(program), separators=(",", ":")))
            detail = (
                f"{size / 1e3:,.0f} kB against {plain / 1e6:,.1f} MB; saved in {saved:.2f} s, loaded in {loaded:.2f} s"
            )
            rows.append(Row(f"JSON ÷ program file, {name}", plain / size, "×", 20.0, True, detail))
        ops = expand(jobs.pipeline_job(16, 512))
        graph = fold(ops)
        timeline = FixedRun(graph).timeline(price(ops).durations(graph))
        summary = write_perfetto(timeline, Path(folder) / "out.pftrace")
        seconds = cpu_seconds(lambda: write_perfetto(timeline, Path(folder) / "out.pftrace"), 2)
        detail = f"{summary.slices:,} slices, {summary.size_bytes / 1e6:.1f} MB"
        rows.append(Row("Perfetto writer", summary.slices / seconds, "slices/s", detail=detail))
    return rows


def workloads() -> list[Row]:
    """A SimAI/AICB workload from its bytes to the timeline, in process and as a command.

    SimAI-Analytical adds up the same file by a formula: 5.2 to 6.3 CPU seconds as its script builds it, 0.023 at -O3.
    """
    path = Path(__file__).parents[1] / "examples" / "llama405b_1024gpu.txt"
    cluster = load_cluster("h100-dgx")

    def run(gpus: int | None = None) -> float:
        return simulate(foretrace.open(path, gpus=gpus), Machine(cluster), explain=False).step_time_s

    def command(*more: str) -> Callable[[], object]:
        words = [sys.executable, "-m", "foretrace", "simulate", str(path), "--cluster", "h100-dgx", *more]
        return lambda: subprocess.run(words, check=True, capture_output=True)

    few, many = cpu_seconds(run, 15), cpu_seconds(lambda: run(16384), 15)
    read = cpu_seconds(lambda: read_workload(path), 15)
    detail = f"reading alone {1e3 * read:.1f} ms"
    return [
        Row("557-row workload, 1,024 GPUs: bytes to timeline", few, "s", 0.025, detail=detail),
        Row("… on 16,384 GPUs, against 1,024", many / few, "×", 1.1),
        Row("… the whole command, CPU", child_seconds(command(), 3), "s", 0.6),
        Row("… the whole command on 16,384 GPUs, CPU", child_seconds(command("--gpus", "16384"), 3), "s", 0.6),
    ]


def reports() -> list[Row]:
    """The report of the 557-row workload and of a large job: from the answer to the text of the file, and its size."""
    path = Path(__file__).parents[1] / "examples" / "llama405b_1024gpu.txt"
    machine = Machine("h100-dgx")
    plan = foretrace.Plan(gpus=16384, tp=8, pp=16, vpp=8, zero=2, gbs=2048)
    small = simulate(foretrace.open(path), machine, try_changes=True)
    large = simulate(foretrace.model("llama3.1-405b", plan), machine, try_changes=True)

    def size_mb(answer: foretrace.Answer) -> float:
        return len(report_html([view_of(answer)]).encode()) / 1e6

    return [
        Row("557-row workload: answer to report", cpu_seconds(lambda: size_mb(small), 5), "s", 1),
        Row("… size of the report", size_mb(small), "MB", 1),
        Row("Llama 3.1 405B on 16,384 GPUs: answer to report", cpu_seconds(lambda: size_mb(large), 3), "s"),
        Row("… size of the report", size_mb(large), "MB", 3),
    ]


def explicit_networks() -> list[Row]:
    """Llama 3.1 405B on 16,384 GPUs of the Llama 3 cluster: flows that spread, and flows that are hashed."""
    cluster = load_cluster(str(Path(__file__).parents[1] / "examples" / "clusters" / "h100_24k.yaml"))
    hashed = replace(cluster, topology=replace(cluster.topology, routing="ecmp"))
    plan = foretrace.Plan(gpus=16384, tp=8, pp=16, vpp=8, zero=2, gbs=2048)
    model = foretrace.load_model("llama3.1-405b")

    def run(on: Cluster) -> float:
        return foretrace.simulate(foretrace.model(model, plan), Machine(on)).step_time_s

    return [
        Row(
            "Llama 3.1 405B on 16,384 GPUs, explicit network, with gains", cpu_seconds(lambda: run(cluster), 1), "s", 10
        ),
        Row("… with hashed ways", cpu_seconds(lambda: run(hashed), 1), "s", 10),
    ]


def predictions() -> list[Row]:
    """DeepSeek-V3 on 2,048 GPUs from a plan to the answer, once prices are loaded, and as a command from nothing."""
    model, cluster = foretrace.load_model("deepseek-v3"), load_cluster("h800-hgx")
    plan = foretrace.Plan(
        gpus=2048, pp=16, ep=64, gbs=7680, recompute="full", precision="fp8_block", dispatcher="deepep"
    )

    def run(explain: bool) -> float:
        return foretrace.simulate(
            foretrace.model(model, plan), Machine(cluster), explain=explain, even_if_oom=True
        ).step_time_s

    words = "predict llama3-70b --gpus 512 --cluster h100-dgx --tp 4 --pp 4 --gbs 1024"
    command = [sys.executable, "-m", "foretrace", *words.split()]
    whole = child_seconds(lambda: subprocess.run(command, check=True, capture_output=True), 3)
    return [
        Row("DeepSeek-V3 on 2,048 GPUs: plan to timeline", cpu_seconds(lambda: run(False), 9), "s", 0.15),
        Row("… with gains and band", cpu_seconds(lambda: run(True), 5), "s"),
        Row("Llama 3 70B on 512 GPUs, the whole command, CPU", whole, "s"),
    ]


def static_peaks() -> list[Row]:
    """The memory of Llama 3.1 405B on 16,384 GPUs by its schedule alone, next to simulating the step for it."""
    machine = Machine("h100-dgx")
    plan = foretrace.Plan(gpus=16384, tp=8, pp=16, vpp=8, zero=2, gbs=2048)
    model = foretrace.load_model("llama3.1-405b")
    setting = settle(model, plan)
    alone = cpu_seconds(lambda: static_memory(setting, machine), 9)
    whole = cpu_seconds(lambda: simulate(foretrace.model(model, plan), machine, explain=False), 3)
    return [
        Row("405B on 16,384 GPUs: memory without running the step", alone * 1e3, "ms", 20),
        Row("… times as fast as simulating it", whole / alone, "×", 20, at_least=True),
    ]


SECOND = """
import time, foretrace
machine, explain = foretrace.Machine("h100-dgx"), {explain}
def ask(tp):
    began = time.process_time()
    plan = foretrace.Plan(gpus=512, tp=tp, pp=4, gbs=1024)
    foretrace.simulate(foretrace.model("llama3-70b", plan), machine, explain=explain, even_if_oom=True)
    return time.process_time() - began
print(ask(4), ask(4), ask(8))
"""


def second_questions() -> list[Row]:
    """A second prediction on the same machine against the first, in a process that begins with nothing read."""
    rows = []
    for explain, what, target in ((False, "to the timeline", 3.0), (True, "with gains and band", 3.0)):
        command = [sys.executable, "-c", SECOND.format(explain=explain)]
        runs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() for _ in range(3)]
        first, same, other = (min(float(run[at]) for run in runs) for at in range(3))
        detail = f"first {first:.2f} s; another plan {first / other:.1f} ×"
        rows.append(Row(f"Llama 3 70B again on one Machine, {what}", first / same, "×", target, True, detail))
    return rows


def child_seconds(work: Callable[[], object], repeats: int) -> float:
    """The least CPU time, user and system, that the processes started by a call take."""
    best = float("inf")
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        work()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


def main() -> None:
    """Measures everything and prints a table, or JSON."""
    jit.use(False)
    compileall.compile_dir(Path(foretrace.__file__).parent, quiet=1)  # as an installed package is
    rows: list[Row] = []
    for measure in (
        help_time,
        workloads,
        predictions,
        reports,
        static_peaks,
        explicit_networks,
        second_questions,
        arbitrary_ops,
        growth,
        scenarios,
        folded_job,
        whole_answers,
        unfolded_ranks,
        shared_events,
        files,
    ):
        print(f"measuring {measure.__name__} …", file=sys.stderr)
        rows += measure()
    if "--json" in sys.argv:
        print(
            json.dumps(
                {"schema": "foretrace.speed/1", "rows": [asdict(row) | {"met": row.within_target} for row in rows]}
            )
        )
        return
    show(rows)


def show(rows: list[Row]) -> None:
    """Prints the rows as a table."""
    for row in rows:
        target = "" if row.target is None else f"{'≥' if row.at_least else '≤'} {row.target:,g}"
        verdict = {True: "met", False: "MISSED", None: ""}[row.within_target]
        value = f"{row.value:,.0f}" if row.value >= 1000 else f"{row.value:.3g}"
        print(f"{row.what:<52} {value:>10} {row.unit:<9} {target:>10}  {verdict:<6}  {row.detail}")


if __name__ == "__main__":
    main()
