"""How fast `foretrace serve` answers, alone and with 50 users, and how much memory it keeps.

    python benchmarks/serve.py [--seconds 60] [--users 50] [--requests 10000] [--workers N]

A server is started for it. A change is timed as a page sees it: from the request until the event with the new step,
breakdown and memory has come. Users ask one after the other, each every ten seconds, and replace their question before,
as the page does; a request fails if it is answered with an error, or if its stream ends without an answer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from server_client import Browser, RunningServer, put_until_answered, server

CHANGE_S = 0.150
"""From a change to new numbers, for a prediction of 1,024 GPUs."""
PAUSE_S = 10.0
"""Seconds between two changes of a user."""
UPLOAD_BYTES = 2 << 30
MEMORY_SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
MAX_GROWTH = 0.1
"""By how much memory may be larger after all requests than after a tenth of them."""

QUESTION: dict[str, Any] = {
    "ask": "step",
    "input": {"model": "llama3-70b"},
    "options": {"gpus": "1024", "tp": "4", "pp": "4", "gbs": "1024"},
    "machine": {"cluster": "h100-dgx"},
}
CHANGES = [
    {"tp": tp, "pp": pp, "mbs": mbs, "gbs": gbs}
    for tp in ("4", "8")
    for pp in ("2", "4", "8")
    for mbs in ("1", "2")
    for gbs in ("1024", "1536", "2048")
]
SMALL: dict[str, Any] = {**QUESTION, "input": {"model": "llama3-8b"}, "options": {"gpus": "64", "tp": "2", "gbs": "64"}}


@dataclass
class Latencies:
    """Seconds until quick and whole answers, and how the others ended."""

    quick_s: list[float] = field(default_factory=list)
    full_s: list[float] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    longest_queue: int = 0


def changed(generator: random.Random) -> dict[str, Any]:
    """The question with other values."""
    options = {**QUESTION["options"], **generator.choice(CHANGES)}
    if generator.random() < 0.75:
        return {**QUESTION, "options": options}
    what_if = [f"nic={generator.randint(10, 30) / 10:g}x"]
    return {**QUESTION, "options": options, "scenario": {"what_if": what_if}}


def quantile(values: list[float], share: float) -> float:
    """The value below which this share of all lies."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def begin(browser: Browser, question: dict[str, Any], latencies: Latencies, **others: Any) -> str | None:
    """Asks a question and returns its job; None where it is refused."""
    response = browser.http.post("/api/jobs", json={**question, **others})
    if response.status_code != 200:
        latencies.ends[response.json()["error"]["code"]] += 1
        return None
    return str(response.json()["job"])


def follow(browser: Browser, job: str, began: float, latencies: Latencies) -> None:
    """Notes when the events of a job come, and how it ends."""
    end = "no end"
    for name, values in browser.events(job):
        if name == "quick":
            latencies.quick_s.append(time.perf_counter() - began)
        elif name == "answer":
            latencies.full_s.append(time.perf_counter() - began)
        elif name == "queued":
            latencies.longest_queue = max(latencies.longest_queue, values["position"])
        end = values["code"] if name == "failed" else name
    latencies.ends[end] += 1


def timed(browser: Browser, question: dict[str, Any], latencies: Latencies) -> None:
    """Asks a question and waits for its answer."""
    began = time.perf_counter()
    job = begin(browser, question, latencies)
    if job is not None:
        follow(browser, job, began, latencies)


def show(what: str, value: str, target: str = "", is_met: bool | None = None) -> None:
    """Prints a row."""
    verdict = "" if is_met is None else "  met" if is_met else "  MISSED"
    print(f"{what:<58}{value:>16}{target:>14}{verdict}", flush=True)


def one_user(running: RunningServer) -> None:
    """Times changes of one user: of the plan, the batch, and now and then the rate of NICs."""
    generator, latencies = random.Random(0), Latencies()
    with Browser(running.url) as browser:
        for _ in range(10):
            timed(browser, changed(generator), Latencies())
        for _ in range(50):
            timed(browser, changed(generator), latencies)
    middle, late = median(latencies.quick_s), quantile(latencies.quick_s, 0.95)
    show("change to new numbers, 1,024 GPUs, median", f"{1e3 * middle:.0f} ms", "150 ms", middle <= CHANGE_S)
    show("… 95 % of changes within", f"{1e3 * late:.0f} ms", "150 ms", late <= CHANGE_S)
    show("change to the whole answer, median", f"{1e3 * median(latencies.full_s):.0f} ms")
    show("… 95 % of answers within", f"{1e3 * quantile(latencies.full_s, 0.95):.0f} ms")


def many_users(running: RunningServer, users: int, seconds: float) -> None:
    """Lets users change something every ten seconds, and counts what fails."""
    latencies, until = Latencies(), time.monotonic() + seconds

    def use(number: int) -> None:
        generator = random.Random(number)
        followers: list[threading.Thread] = []
        with Browser(running.url) as browser:
            time.sleep(PAUSE_S * number / users)
            job = None
            while time.monotonic() < until:
                others = {} if job is None else {"replaces": job}
                began = time.perf_counter()
                job = begin(browser, changed(generator), latencies, **others)
                if job is not None:
                    followers.append(threading.Thread(target=follow, args=(browser, job, began, latencies)))
                    followers[-1].start()
                time.sleep(PAUSE_S)
            for follower in followers:
                follower.join()

    threads = [threading.Thread(target=use, args=(number,)) for number in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = sum(count for end, count in latencies.ends.items() if end not in ("answer", "cancelled"))
    asked = sum(latencies.ends.values())
    show(f"{users} users, each a change every {PAUSE_S:g} s: failed requests", f"{failed} of {asked}", "0", not failed)
    show("… whole answers, replaced before", f"{latencies.ends['answer']}, {latencies.ends['cancelled']}")
    for name, values in (("new numbers", latencies.quick_s), ("whole answer", latencies.full_s)):
        if values:
            text = f"{median(values):.2f}, {quantile(values, 0.95):.2f} s"
            show(f"… {name}, median and 95 %", text)
    show("… longest queue that a page showed", str(latencies.longest_queue))


def resident_mib(pid: int) -> float:
    """The memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def memory(running: RunningServer, requests: int) -> None:
    """Shows the memory of the server and of its workers after some of the requests, and whether it has grown.

    A request is a job, of which every fifth is followed to its whole answer; others are replaced by the next, as in a
    form that somebody plays with. Workers are replaced when they hold too much: what counts is all of them together.
    """
    generator, sizes = random.Random(1), []
    with Browser(running.url) as browser:
        done = 0
        for share in MEMORY_SHARES:
            while done < share * requests:
                what_if = [f"compute={generator.randint(1000, 2000) / 1000:g}x"]
                job = browser.begin({**SMALL, "scenario": {"what_if": what_if}})
                for name, _ in browser.events(job):
                    if name == "quick" and done % 5:
                        browser.http.post(f"/api/jobs/{job}/cancel")
                done += 1
            held = [resident_mib(pid) for pid in (running.process.pid, *running.workers)]
            sizes.append(held)
            text = ", ".join(f"{size:.0f}" for size in held)
            show(f"memory after {done:,} requests: server, workers", f"{text} MiB")
    for noun, first, last in (
        ("the server", sizes[0][0], sizes[-1][0]),
        ("the workers", sum(sizes[0][1:]), sum(sizes[-1][1:])),
    ):
        grown = last / first - 1
        show(
            f"memory of {noun} since a tenth of the requests", f"{grown:+.1%}", f"{MAX_GROWTH:.0%}", grown <= MAX_GROWTH
        )


def large_upload(running: RunningServer) -> None:
    """Sends a file of 2 GB, which the server refuses before it has come."""
    with Browser(running.url) as browser:
        for text, is_declared in (("declared", True), ("in chunks", False)):
            upload = browser.http.post("/api/uploads", json={"names": ["large.json"]}).json()["upload"]
            began, piece = time.perf_counter(), bytes(1 << 20)
            status, sent_bytes = put_until_answered(
                browser, f"/api/uploads/{upload}/0", piece, UPLOAD_BYTES // len(piece), is_declared=is_declared
            )
            seconds = time.perf_counter() - began
            value = f"{seconds:.2f} s, {sent_bytes >> 20} MiB"
            show(f"an upload of 2 GB, {text}, is refused ({status})", value, "1 s", seconds <= 1 and status == 413)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=max(os.cpu_count() or 1, 2))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, server(Path(folder), "--workers", str(options.workers)) as running:
        print(json.dumps({"cpus": os.cpu_count(), "workers": options.workers}))
        one_user(running)
        large_upload(running)
        many_users(running, options.users, options.seconds)
        memory(running, options.requests)


if __name__ == "__main__":
    main()
