"""Op families: the sets of ops a person asks about, by the words they use.

compute  communication  host          what an op is
forward  backward  optimizer  …       which phase it belongs to
tp  dp  pp  ep  …                     the axis it communicates over
all_reduce  all_to_all  …             what it does there
gemm  attention  norm  moe gate  …    what kind of kernel it runs (`inputs.torch_ops.kinds`)
name:attention*   lane:dp             its name or lane, with * and ?
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from foretrace.basics.arrays import Mask
from foretrace.basics.errors import InputError, did_you_mean
from foretrace.inputs.torch_ops.recorded_gpu import RECORDED_ON, TABLE
from foretrace.program.columns import Collective, Kind, Phase, label
from foretrace.program.expand import Ops

_BACKWARD = (Phase.BACKWARD, Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT)


@dataclass(frozen=True, slots=True)
class Family:
    """A word and the ops it means."""

    name: str
    ops: Mask


def families(ops: Ops) -> list[Family]:
    """Returns every family that has ops in this program, broad ones first, one for each set of ops.

    A profile also has kinds of kernels: there an op is one kernel, or all kernels of a kind in a phase of a table.
    """
    distinct: dict[bytes, Family] = {}
    words = _words(ops)
    if _from_table(ops) or any(source.name.startswith(RECORDED_ON) for source in ops.program.sources):
        words |= {name: mask for name, mask in work_kinds(ops).items() if name not in words}
    for name, mask in words.items():
        if mask.any() and name != "communication":
            distinct.setdefault(mask.tobytes(), Family(name, mask))
    return list(distinct.values())


def select(ops: Ops, text: str) -> Mask:
    """Returns the ops that a word or a pattern means; raises an error with the known words if it means none."""
    text = text.strip()
    words = _words(ops)
    if ":" in text:
        kind, pattern = text.split(":", 1)
        mask = _by_pattern(ops, kind, pattern)
    elif text in words:
        mask = words[text]
    elif text in (kinds := work_kinds(ops)):
        mask = kinds[text]
    else:
        known = list(dict.fromkeys([*(name for name, members in words.items() if members.any()), *kinds]))
        raise InputError(
            "unknown-name",
            f'"{text}" names no ops of this job{did_you_mean(text, known)}',
            where="what-if",
            hint=f"known: {', '.join(known)}, name:…, lane:…",
        )
    if not mask.any():
        raise InputError("unknown-name", f'"{text}" names no ops of this job', where="what-if")
    return mask


def _words(ops: Ops) -> dict[str, Mask]:
    kind, phase, collective = ops.ints("kind"), ops.ints("phase"), ops.ints("collective")
    communicator = ops.ints("communicator")
    enabled = ops.column("enabled").astype(bool)
    words = {
        "compute": kind == Kind.COMPUTE,
        "communication": (kind == Kind.COLLECTIVE) | (kind == Kind.TRANSFER),
        "host": kind == Kind.HOST,
    }
    for number, meeting in enumerate(ops.program.communicators):
        words[meeting.axis] = words.get(meeting.axis, np.zeros(len(ops), dtype=bool)) | (communicator == number)
    computes = kind == Kind.COMPUTE
    words["forward"] = computes & (phase == Phase.FORWARD)
    words["backward"] = computes & np.isin(phase, _BACKWARD)
    for one_phase in (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT, Phase.RECOMPUTE, Phase.OPTIMIZER):
        words[label(one_phase)] = computes & (phase == one_phase)
    for what in Collective:
        if what != Collective.NONE:
            words[label(what)] = collective == what
    return {name: mask & enabled for name, mask in words.items()}


def _from_table(ops: Ops) -> bool:
    return any(source.name == TABLE for source in ops.program.sources)


def work_kinds(ops: Ops) -> dict[str, Mask]:
    """Returns the computations of each kind of kernel, by its word.

    An op is of a kind if all of its kernels are. An op whose kernels are not known has the kind that its name states:
    that of a kind in a table, of an op or of a label.
    """
    from foretrace.inputs.torch_ops.kinds import WorkKind, kind_of_kernel, kind_of_op, kinds_of_text  # few ask

    words = {str(kind): kind for kind in WorkKind} if _from_table(ops) else {}
    kind_of_name = kind_of_op if words else kind_of_kernel
    strings, kernel, name = ops.program.strings, ops.ints("kernel"), ops.ints("name")
    computes = (ops.ints("kind") == Kind.COMPUTE) & ops.column("enabled").astype(bool)
    by_text = {number: kinds_of_text(strings[number]) for number in set(kernel[computes].tolist()) if number >= 0}
    mixed = {kind for kinds in by_text.values() if len(kinds) > 1 for kind in kinds}
    by_name = {
        number: words.get(strings[number]) or kind_of_name(strings[number])
        for number in set(name[computes & (kernel < 0)].tolist())
    }
    masks: dict[str, Mask] = {}
    for kind in WorkKind:
        if kind in mixed or kind is WorkKind.OTHER:
            continue  # part of an op cannot be faster by itself
        texts = [number for number, kinds in by_text.items() if kinds == {kind}]
        names = [number for number, its in by_name.items() if its is kind]
        mask = computes & (np.isin(kernel, texts) | ((kernel < 0) & np.isin(name, names)))
        if mask.any():
            masks[str(kind)] = mask
    return masks


def _by_pattern(ops: Ops, kind: str, pattern: str) -> Mask:
    tables = {"name": ops.program.strings, "lane": tuple(lane.name for lane in ops.program.lanes)}
    if kind not in tables:
        raise InputError("bad-value", f'ops are chosen by name: or lane:, not by "{kind}:"')
    matches = np.array([fnmatchcase(text, pattern) for text in tables[kind]], dtype=bool)
    return np.asarray(matches[ops.ints(kind)] & ops.column("enabled").astype(bool))
