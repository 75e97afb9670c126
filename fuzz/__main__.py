"""`python -m fuzz`: run, report, replay and minimise."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from pathlib import Path

from fuzz.oracle import judge
from fuzz.run import STATE, Store, run, scratch_folder
from fuzz.targets import Target, all_targets


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--state", type=Path, default=STATE, help="the folder that keeps what was done and found")
    commands = parser.add_subparsers(dest="command", required=True)
    trying = commands.add_parser("run", help="try inputs")
    trying.add_argument("--seconds", type=float, default=180.0)
    trying.add_argument("--workers", type=int, default=2)
    trying.add_argument("--no-guide", action="store_true", help="do not look at coverage: every seed is reproducible")
    trying.add_argument("targets", nargs="*", metavar="TARGET", help="all, unless named; a prefix such as api: too")
    commands.add_parser("report", help="print what was done and found")
    commands.add_parser("list", help="list the targets")
    for name, text in (("replay", "run a finding again"), ("minimise", "make the input of a finding small")):
        commands.add_parser(name, help=text).add_argument("findings", nargs="*", metavar="FINDING")
    guided = commands.add_parser("atheris", help="let libFuzzer guide one target, where atheris is installed")
    guided.add_argument("target")
    guided.add_argument("words", nargs=argparse.REMAINDER, help="arguments of libFuzzer, such as -runs=10000")
    keeping = commands.add_parser("keep", help="put a finding into the corpus of regression tests")
    keeping.add_argument("finding")
    keeping.add_argument("name", help="what it is, such as number_as_category")
    seed = commands.add_parser("seed", help="run one seed of a target")
    seed.add_argument("target")
    seed.add_argument("number", type=int)
    given = parser.parse_args(arguments)
    store = Store(given.state)
    if given.command == "run":
        try:
            run(store, chosen_targets(given.targets), given.seconds, given.workers, guided=not given.no_guide)
        except KeyboardInterrupt:  # before the first input
            return 130
        return _print_report(store)
    if given.command == "report":
        return _print_report(store)
    if given.command == "list":
        print("\n".join(all_targets()))
        return 0
    if given.command == "seed":
        case = _target(given.target).case(given.number)
        with scratch_folder() as folder:
            return _show(judge(case, folder), shlex.join(case.words))
    if given.command == "atheris":
        from fuzz.coverage import run_atheris

        run_atheris(_target(given.target), given.words, store)
        return 0
    if given.command == "keep":
        from fuzz.corpus import keep

        print(keep(store.load(given.finding)[0], given.name))
        return 0
    known = [name for name, _ in store.findings()]
    for name in given.findings:
        if name not in known:
            sys.exit(f"no finding is called {name}; python -m fuzz report")
    names = given.findings or known
    return _replay(store, names) if given.command == "replay" else _minimise(store, names)


def _target(name: str) -> Target:
    if name not in all_targets():
        sys.exit(f"no target is called {name}; python -m fuzz list")
    return all_targets()[name]


def chosen_targets(words: list[str]) -> list[str]:
    """Returns the targets that words name: the one of exactly this name, else all that begin so."""
    targets = all_targets()
    names: dict[str, None] = {} if words else dict.fromkeys(targets)
    for word in words:
        meant = [word] if word in targets else [name for name in targets if name.startswith(word)]
        if not meant:
            sys.exit(f"no target is called {word}; python -m fuzz list")
        names |= dict.fromkeys(meant)
    return list(names)


def _replay(store: Store, names: list[str]) -> int:
    """Runs findings again; returns 1 where one is still broken."""
    broken = 0
    for name in names:
        case, record = store.load(name)
        with scratch_folder() as folder:
            verdict = judge(case, folder)
        broken += bool(verdict.faults)
        state = "broken" if verdict.faults else "mended"
        print(
            f"{name}  {state}  code {verdict.code}  {verdict.cpu_s:.2f} s  was {record['kind']}: {record['signature']}"
        )
        if len(names) == 1:
            _show(verdict, shlex.join(case.words))
    return int(broken > 0)


def _show(verdict: object, words: str) -> int:
    from fuzz.oracle import Verdict

    assert isinstance(verdict, Verdict)
    print(f"foretrace {words[:500]}\ncode {verdict.code}, {verdict.cpu_s:.2f} s, {verdict.peak_bytes >> 20} MiB more")
    print(verdict.stdout[-1500:], verdict.stderr[-1500:], sep="\n")
    for fault in verdict.faults:
        print(f"{fault.kind}: {fault.signature}\n{fault.detail}")
    return int(bool(verdict.faults))


def _minimise(store: Store, names: list[str]) -> int:
    from fuzz.minimise import minimise

    for name in names:
        case, record = store.load(name)
        small = minimise(case, record["signature"])
        before, after = (sum(map(len, each.files.values())) for each in (case, small))
        if small != case:
            from fuzz.oracle import Fault

            store.add_finding(small, Fault(record["kind"], record["signature"], record["detail"]))
        print(f"{name}  {before:,} to {after:,} bytes  {record['signature']}")
    return 0


def _print_report(store: Store) -> int:
    rows = [("target", "inputs", "answered", "refused", "broken", "per s", "slowest", "peak MiB")]
    for name, tally in sorted(store.tallies.items()):
        rate = tally.inputs / tally.cpu_s if tally.cpu_s else 0.0
        figures = (tally.inputs, tally.answered, tally.refused, tally.broken)
        times = (f"{rate:,.0f}", f"{tally.slowest_s:.2f} s", f"{tally.peak_bytes >> 20:,}")
        rows.append((name, *(f"{figure:,}" for figure in figures), *times))
    total = [sum(getattr(tally, key) for tally in store.tallies.values()) for key in ("answered", "refused", "broken")]
    cpu_s = sum(tally.cpu_s for tally in store.tallies.values())
    rate = f"{sum(total) / max(cpu_s, 1e-9):,.0f}"
    rows.append(("all", *(f"{figure:,}" for figure in (sum(total), *total)), rate, "", ""))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        print(f"{row[0]:<{widths[0]}}", *(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)))
    findings = store.findings()
    for name, record in findings:
        words = " ".join(record["words"])
        place = f"{record['target']}: {words[:100]}"
        print(f"{name}  {record['count']:>6,} ×  {record['kind']}: {record['signature']}   ({place})")
    return int(bool(findings))


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # of `python -m fuzz list | head`
    sys.exit(main())
