"""Runs a training script in processes that really exchange data, and logs the collectives of its last step.

`python real_collectives.py LOG SCRIPT ARGUMENTS` is one rank; it needs nothing of foretrace, so that what it logs does
not depend on the tracer. `run_really` starts all ranks on this machine, with gloo.
"""

from __future__ import annotations

import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Logged = tuple[str, tuple[int, ...], int, int]
"""A collective: its kind, the ranks of its group, its bytes, and the rank at its other end (-1: none)."""

TIMEOUT_S = 120.0


def run_really(script: Path, arguments: Sequence[str], world: int) -> list[list[Logged]]:
    """Returns the collectives of the last step of each rank."""
    try:
        return _run(script, arguments, world)
    except RuntimeError as error:
        if "EADDRINUSE" not in str(error):
            raise
        return _run(script, arguments, world)  # another process took the port that was free


def _run(script: Path, arguments: Sequence[str], world: int) -> list[list[Logged]]:
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        logs = [Path(folder) / f"{rank}.json" for rank in range(world)]
        processes = []
        for rank, log in enumerate(logs):
            own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
            own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1, "GLOO_SOCKET_IFNAME": "lo"}
            environment = os.environ | {name: str(value) for name, value in own.items()}
            command = [sys.executable, __file__, str(log), str(script), *arguments]
            processes.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            )
        try:
            for process in processes:
                _, errors = process.communicate(timeout=TIMEOUT_S)
                if process.returncode:
                    raise RuntimeError(errors)
        finally:
            for process in processes:
                process.kill()
        return [[(kind, tuple(ranks), *rest) for kind, ranks, *rest in json.loads(log.read_text())] for log in logs]


def _log_rank(log: Path, script: str, arguments: list[str]) -> None:
    """Runs a script as the rank that the environment names."""
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils._python_dispatch import TorchDispatchMode

    calls: list[Logged] = []
    ends: list[int] = []
    register_optimizer_step_post_hook(lambda *_: ends.append(len(calls)))

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            space, _, name = func._schema.name.partition("::")
            if any(kind.__name__ in ("DTensor", "AsyncCollectiveTensor") for kind in types):
                return NotImplemented  # they unwrap what they hold, and the op comes again
            if space in ("c10d", "_c10d_functional") and name not in _OTHERS:
                calls.append(_describe(space, name, args))
            return func(*args, **(kwargs or {}))

    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    with Log():
        runpy.run_path(script, run_name="__main__")
    first, last = ends[-2:]
    log.write_text(json.dumps(calls[first:last]))
    os._exit(0)  # threads of gloo that still run at the end of a process abort it now and then


_OTHERS = ("wait_tensor", "_wrap_tensor_autograd")
"""Ops that exchange nothing."""

_REDUCTIONS = ("sum", "avg", "max", "min", "product", "SUM", "AVG", "MAX", "MIN")

_KINDS = {
    "scatter_": "SCATTER",
    "barrier": "BARRIER",
    "reduce_": "REDUCE",
    "gather_": "GATHER",
    "allreduce_": "ALL_REDUCE",
    "all_reduce": "ALL_REDUCE",
    "all_reduce_": "ALL_REDUCE",
    "_allgather_base_": "ALL_GATHER",
    "allgather_": "ALL_GATHER",
    "all_gather_into_tensor": "ALL_GATHER",
    "_reduce_scatter_base_": "REDUCE_SCATTER",
    "reduce_scatter_tensor": "REDUCE_SCATTER",
    "alltoall_base_": "ALL_TO_ALL",
    "all_to_all_single": "ALL_TO_ALL",
    "broadcast_": "BROADCAST",
    "broadcast": "BROADCAST",
    "send": "SEND",
    "recv_": "RECEIVE",
}


def _describe(space: str, name: str, args: Any) -> Logged:
    """Returns the kind, group, bytes and peer of an op of torch.distributed, by its schema."""
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _resolve_process_group
    from torch.utils._pytree import tree_leaves

    group: Any = None
    for arg in args:
        if isinstance(arg, torch.ScriptObject) and arg._type().name() == "ProcessGroup":
            group = dist.ProcessGroup.unbox(arg)
        elif isinstance(arg, dist.ProcessGroup):
            group = arg
        elif isinstance(arg, str) and space == "_c10d_functional" and arg not in _REDUCTIONS:
            group = _resolve_process_group(arg)
    ranks = tuple(dist.get_process_group_ranks(group))
    kind = _KINDS[name]
    # These come as (output, input); all others have what they send first.
    data = args[1] if name in ("_reduce_scatter_base_", "alltoall_base_") else args[0]
    size = sum(t.numel() * t.element_size() for t in tree_leaves(data))
    if name == "all_gather_into_tensor":
        size *= len(ranks)
    peer = ranks[args[2]] if kind in ("SEND", "RECEIVE") else -1
    return kind, ranks, size, peer


if __name__ == "__main__":
    _log_rank(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
