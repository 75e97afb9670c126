"""Reads the collectives of rows: what they do, the group they run over, and whether anything is sent at all."""

from __future__ import annotations

from typing import Final, Literal

from foretrace.basics.errors import InputError, nearest
from foretrace.basics.mesh import Mesh
from foretrace.inputs.aicb.format import Pass, Workload, split_collective
from foretrace.program.columns import Collective, Phase
from foretrace.step.spec import Call

PassName = Literal["forward", "input_grad", "weight_grad"]
PASSES: Final[tuple[PassName, ...]] = ("forward", "input_grad", "weight_grad")

_COLLECTIVES: Final = {
    "ALLREDUCE": Collective.ALL_REDUCE,
    "ALLGATHER": Collective.ALL_GATHER,
    "REDUCESCATTER": Collective.REDUCE_SCATTER,
    "ALLTOALL": Collective.ALL_TO_ALL,
}
_SUFFIX_AXES: Final = {"_EP": "ep", "_DP_EP": "edp"}


MAX_COMPUTE_NS: Final = 2.6e15
MAX_CALL_BYTES: Final = 10**15


class CallReader:
    """Reads collectives as written, each distinct one once."""

    def __init__(self, workload: Workload, mesh: Mesh) -> None:
        self._workload = workload
        self._size = {axis: mesh.size(axis) for axis in ("tp", "dp", "ep", "edp")}
        self._known: dict[tuple[str, bool, float], Call | None] = {}

    def read(self, part: Pass, which: PassName, line: int) -> Call | None:
        """Returns the collective of a pass, or None where there is none or it has nothing to send.

        Its name and phase are for the caller to set.
        """
        if part.compute_ns > MAX_COMPUTE_NS:
            raise InputError(
                "out-of-range",
                f"a computation of {part.compute_ns:,} ns takes longer than a month",
                where=self._workload.at(line),
                hint="times are in nanoseconds",
            )
        key = (part.collective, which == "weight_grad", part.size_bytes)
        if key not in self._known:
            self._known[key] = self._read(part, which, line)
        return self._known[key]

    def _read(self, part: Pass, which: PassName, line: int) -> Call | None:
        name, suffix = split_collective(part.collective.upper())
        if name == "NONE":
            return None
        if name not in _COLLECTIVES:
            near = nearest(name, _COLLECTIVES)
            meant = f"; did you mean {near}{suffix}?" if near else ""
            raise InputError(
                "unknown-collective",
                f'collective "{part.collective}" is not known{meant}',
                where=self._workload.at(line),
                hint=f"known: NONE {' '.join(_COLLECTIVES)}, with suffix _EP or _DP_EP",
            )
        axis = _SUFFIX_AXES.get(suffix, "dp" if which == "weight_grad" else "tp")
        size = round(part.size_bytes)
        if size > MAX_CALL_BYTES:
            raise InputError(
                "out-of-range",
                f"{part.collective} of {size:,} bytes is more than any job sends",
                where=self._workload.at(line),
                hint=f"sizes are in bytes, at most {MAX_CALL_BYTES:,}",
            )
        if size == 0 or self._size[axis] == 1:
            return None
        return Call("", Phase.NONE, _COLLECTIVES[name], axis, size)
