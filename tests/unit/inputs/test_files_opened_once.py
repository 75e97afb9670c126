"""Every reader opens each file once, also where the file was looked at before to tell what it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from kineto_files import document, small_step, write
from shared_files import ROOT

SCRIPT = """
import json, sys
from collections import Counter
from pathlib import Path
from foretrace.basics.errors import InputError
from foretrace.basics.files import given_paths
from foretrace.inputs.aicb.format import read_workload
from foretrace.inputs.profiler_trace.format.execution_trace import looks_like_execution_trace
from foretrace.models.hf_config import read_hf_config
from foretrace.inputs.megatron_trace.format import (looks_like_trace, read_runs)
from foretrace.inputs.profiler_trace.format import (looks_like_profile, read_traces)
from foretrace.inputs.profiler_table.format import (looks_like_table, read_tables)
from foretrace.inputs.profiler_trace.execution_join import (read_with_shapes, split_execution_traces)
from foretrace.program.file import load
from foretrace.workload.job_file import read_job

folder = sys.argv[1]
counts = Counter()

def count(event, arguments):
    if event == "open" and str(arguments[0]).startswith(folder):
        counts[str(Path(arguments[0]).relative_to(folder))] += 1

def sniff(given):
    looks_like_trace(given)
    for file in given.first_files:
        looks_like_profile(file), looks_like_execution_trace(file), looks_like_table(file)

sys.addaudithook(count)
for name in ("ranks", "ranks/*.txt", "profiles", "profiles/*", "et", "table.txt", "workload.txt", "config.json",
             "job.yaml", "none.foretrace"):
    counts.clear()
    [given] = given_paths([f"{folder}/{name}"])
    if name.startswith("ranks"):
        looks_like_trace(given)
        read_runs([given, f"{folder}/ranks", f"{folder}/ranks/rank0.txt"])
    elif name.startswith("profiles"):
        read_traces([f"{folder}/profiles/rank0.json", given])
    elif name == "et":
        paths = given_paths([f"{folder}/et/trace.json", f"{folder}/et/et.json"])
        for path in paths:
            sniff(path)
        split_execution_traces(paths)
        read_with_shapes(paths)
    else:
        sniff(given)
        readers = {"table.txt": read_tables, "workload.txt": read_workload, "config.json": read_hf_config,
                   "job.yaml": read_job}
        try:
            readers.get(name, load)(given.files[0])
        except InputError:
            assert name == "none.foretrace", name
    print(json.dumps([name, counts]))
"""


def node(number: int, name: str) -> dict[str, Any]:
    side: dict[str, list[Any]] = {"values": [], "shapes": [], "types": []}
    attributes = [{"name": "rf_id", "type": "uint64", "value": 2}]
    return {"id": number, "name": name, "ctrl_deps": 1, "inputs": side, "outputs": side, "attrs": attributes}


def test_every_file_is_opened_once(tmp_path: Path) -> None:
    for name in ("ranks", "profiles", "et"):
        (tmp_path / name).mkdir()
    for rank in range(2):
        line = f"rank:{rank}:forward_step(stage_id=0,batch_id=0,duration=1.0,timestamp=2.0,sub_operations=[])\n"
        (tmp_path / "ranks" / f"rank{rank}.txt").write_text(line)
        write(tmp_path / "profiles", document(small_step()), f"rank{rank}.json")
    (tmp_path / "ranks" / "notes.txt").write_text("hello")
    (tmp_path / "ranks" / "plot.png").write_bytes(b"\x89PNG")
    (tmp_path / "profiles" / "other.json").write_text("{}")
    write(tmp_path / "et", document(small_step()))
    write(tmp_path / "et", {"schema": "1.1.1-chakra.0.0.4", "pid": 10, "nodes": [node(2, "aten::mm")]}, "et.json")
    (tmp_path / "table.txt").write_bytes((ROOT / "examples" / "moe_fairseq_profile.txt").read_bytes())
    (tmp_path / "workload.txt").write_bytes((ROOT / "examples" / "moe_128gpu.txt").read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "job.yaml").write_text("model: llama3-70b")
    (tmp_path / "none.foretrace").write_text("")
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    ranks = {"ranks/rank0.txt": 1, "ranks/rank1.txt": 1, "ranks/notes.txt": 1}
    profiles = {"profiles/rank0.json": 1, "profiles/rank1.json": 1, "profiles/other.json": 1}
    assert dict(json.loads(line) for line in run.stdout.splitlines()) == {
        "ranks": ranks,
        "ranks/*.txt": ranks,
        "profiles": profiles,
        "profiles/*": profiles,
        "et": {"et/trace.json": 1, "et/et.json": 1},
        **{name: {name: 1} for name in ("table.txt", "workload.txt", "config.json", "job.yaml", "none.foretrace")},
    }
