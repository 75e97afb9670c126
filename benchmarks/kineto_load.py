"""How fast a large trace of the PyTorch profiler is read, and in how much memory, beside Python's own JSON reader.

    python benchmarks/kineto_load.py [--megabytes 500] [--gz] [SAMPLE]

The trace is a sample repeated, each time shifted by its length: the host-bound step in `data/h200` of
`$FORETRACE_SHARED` or of `../shared`, or the file that is given. Each reader runs in a process of its own; that of
Python's json only counts the events. The bounds (60 s and 2 GB for 500 MB) are this project's.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parents[1]
SAMPLE = "h200/tinyllama_mbs1_s512.json.gz"
BOUND_S, BOUND_BYTES = 60.0, 2e9
TS = re.compile(r'("ts"\s*:\s*)(\d+)')


def main() -> None:
    """Writes the trace, reads it both ways, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("FORETRACE_SHARED", HERE.parent / "shared")) / "data"
    parser.add_argument("sample", nargs="?", type=Path, default=shared / SAMPLE)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--gz", action="store_true")
    parser.add_argument("--read", choices=READERS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.read:
        measure(chosen.read, chosen.sample)
        return
    if not chosen.sample.exists():
        print(f"{chosen.sample}: not there; nothing to read")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("trace.json.gz" if chosen.gz else "trace.json")
        size = write(path, chosen.sample, chosen.megabytes * 1_000_000)
        print(f"{chosen.sample.name} repeated: {size / 1e6:,.0f} MB of JSON{', as gzip' if chosen.gz else ''}")
        report(path, size)


def write(path: Path, sample: Path, least_bytes: int) -> int:
    """A trace of at least so many bytes of JSON; how many they are."""
    with (
        gzip.open(sample, "rt", encoding="utf-8") if sample.suffix == ".gz" else sample.open(encoding="utf-8") as stream
    ):
        text = stream.read()
    begin = text.index("[", text.index('"traceEvents"')) + 1
    end = text.rindex("]")
    stamps = [int(match[2]) for match in TS.finditer(text, begin, end)]
    length = max(stamps) - min(stamps) + 1000
    size = 0
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") if path.suffix == ".gz" else path.open("w") as out:
        for part in parts(text, begin, end, length, least_bytes):
            size += out.write(part)
    return size


def parts(text: str, begin: int, end: int, length: int, least_bytes: int) -> Iterator[str]:
    """The head, the events again and again, the tail."""
    yield text[:begin]
    events, done, copies = text[begin:end], begin, 0
    while done < least_bytes:
        shift = copies * length
        again = TS.sub(lambda match, shift=shift: f"{match[1]}{int(match[2]) + shift}", events)  # type: ignore[misc]
        yield again if not copies else f",{again}"
        done += len(again)
        copies += 1
    yield text[end:]


def report(path: Path, size: int) -> None:
    """The table: each reader's time and memory, and the ratio to the last."""
    rows = {}
    for reader in READERS:
        command = [sys.executable, __file__, str(path), "--read", reader]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        rows[reader] = tuple(map(float, done.stdout.split())) if not done.returncode else None
    print(f"{'':<24}{'time':>9}{'':>10}{'of a core':>12}{'peak memory':>14}   events")
    for reader, row in rows.items():
        if row is None:
            print(f"{READERS[reader]:<24}ran out of memory")
            continue
        seconds, core, peak, events = row
        speed = f"{seconds:>7.1f} s{size / seconds / 1e6:>6.0f} MB/s{core:>10.1f} s"
        print(f"{READERS[reader]:<24}{speed}{peak / 1e6:>11,.0f} MB   {events:,.0f}")
    ours, theirs = rows["foretrace"], rows["json"]
    if ours and theirs:
        print(f"foretrace: {theirs[0] / ours[0]:.1f} times as fast in 1/{theirs[2] / ours[2]:.0f} of the memory")
    if ours:
        held = ours[0] <= BOUND_S and ours[2] <= BOUND_BYTES
        print(f"bounds of {BOUND_S:.0f} s and {BOUND_BYTES / 1e9:.0f} GB: {'held' if held else 'NOT HELD'}")


def measure(reader: str, path: Path) -> None:
    """Reads a trace one way, and prints seconds, seconds of a core, peak bytes and events."""
    begin = time.perf_counter()
    if reader == "foretrace":
        from foretrace.inputs.profiler_trace.format import read_trace

        events = len(read_trace(path).events)
    else:
        import json

        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            events = sum(event.get("ph") == "X" for event in json.load(stream)["traceEvents"])
    seconds = time.perf_counter() - begin
    print(seconds, time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, events)


READERS = {"foretrace": "foretrace", "json": "json.load (no columns)"}


if __name__ == "__main__":
    main()
