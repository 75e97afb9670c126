"""Ends of flows as SimGrid has them, on small random networks; skipped where no Python with SimGrid is at hand."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretrace.engine.network.flows import run_flows
from foretrace.engine.network.messages import independent
from foretrace.hardware.fabric.fabric import Routes

ORACLE = Path(__file__).with_name("simgrid_flows.py")
LATENCY = 1e-5


@cache
def python_with_simgrid() -> str | None:
    """The system's Python, if it has SimGrid (Debian's python3-simgrid binds no other)."""
    python = shutil.which("python3", path=os.defpath)
    if python is None:
        return None
    found = subprocess.run([python, "-c", "import simgrid"], capture_output=True, check=False)
    return python if found.returncode == 0 else None


def network(seed: int) -> dict[str, Any]:
    """Links, and flows over some of them in any order, of sizes and starts that meet in many ways; every sixteenth
    network is a large one."""
    random = np.random.default_rng(seed)
    most = (9, 25) if seed % 16 else (65, 401)
    links, flows = int(random.integers(2, most[0])), int(random.integers(2, most[1]))
    return {
        "capacity": random.uniform(1e8, 1e10, links).tolist(),
        "latency_s": LATENCY,
        "flows": [
            {
                "links": random.choice(links, int(random.integers(1, min(links, 4) + 1)), replace=False).tolist(),
                "bytes": int(random.integers(1e5, 1e8)),
                "start_s": float(random.choice([0.0, random.uniform(0, 0.05)])),
            }
            for _ in range(flows)
        ],
    }


@pytest.mark.parametrize("seed", range(1, 320 if os.environ.get("FORETRACE_FUZZ") else 17))
def test_flows_end_when_simgrid_says(seed: int) -> None:
    python = python_with_simgrid()
    if python is None:
        pytest.skip("no system Python with SimGrid (Debian: apt-get install python3-simgrid)")
    case = network(seed)
    run = subprocess.run([python, str(ORACLE)], input=json.dumps(case), capture_output=True, text=True, check=True)
    rows = [flow["links"] for flow in case["flows"]]
    start = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    routes = Routes(start, np.concatenate(rows).astype(np.int64), np.ones(int(start[-1])))
    sizes, starts = (np.array([flow[key] for flow in case["flows"]], dtype=float) for key in ("bytes", "start_s"))
    messages = independent(sizes, routes, np.full(len(sizes), LATENCY), starts)
    ran = run_flows(np.array(case["capacity"]), messages)
    np.testing.assert_allclose(ran.end_s, json.loads(run.stdout), rtol=1e-6)
