"""Which axis of the mesh a process group is: by what the user says, by its description, or by its size and ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.inputs.profiler_trace.job.communication import ProcessGroup
from foretrace.program.columns import Collective

AXES: Final = ("tp", "cp", "dp", "pp", "ep", "etp", "edp", "shard", "replicate", "embd")

_MAX_DESCRIPTION: Final = 200
"""Characters of a description that are looked at; those of frameworks have fewer than 100."""

_DESCRIPTIONS: Final = tuple(
    (re.compile(pattern), axes)
    for pattern, axes in (
        # Megatron-core's parallel_state, the longer names first.
        (r"expert.*tensor.*(data|and)|expert.*model.*(tensor|and)", ("etp", "ep")),
        (r"expert.*tensor", ("etp",)),
        (r"expert.*data|expert_dp|(^|_)edp", ("edp",)),
        (r"expert|(^|_)ep($|_)|moe", ("ep",)),
        (r"position.*embedding|embedding|(^|_)embd", ("embd",)),
        (r"data.*with_cp|dp_cp|dp_shard_cp", ("dp", "cp")),
        (r"tensor.*data|tensor_and_data", ("tp", "dp")),
        (r"tensor.*context", ("tp", "cp")),
        (r"context|(^|_)cp($|_)", ("cp",)),
        # torch's DeviceMesh calls its groups mesh_<dimension>; torchtitan's are dp_shard, dp_replicate, tp, …
        (r"dp_replicate|replicate", ("replicate",)),
        (r"dp_shard|fsdp|(^|_)shard", ("shard",)),
        (r"data_parallel|(^|_)d?dp($|_)|data", ("dp",)),
        (r"tensor|(^|_)tp($|_)", ("tp",)),
        (r"pipeline|(^|_)pp($|_)", ("pp",)),
        (r"model_parallel", ("tp", "pp")),
    )
)


def user_axes(sizes: tuple[tuple[str, str], ...]) -> dict[str, tuple[str, ...]]:
    """Returns the axes that the user states for groups (`group.3=tp`, `group.0=dp,cp`), by the names of the groups."""
    by_group: dict[str, tuple[str, ...]] = {}
    for name, value in sizes:
        if not name.startswith("group."):
            continue
        axes = tuple(value.replace(",", " ").split())
        wrong = [axis for axis in axes if axis not in AXES] or ([] if axes else [value])
        if wrong:
            raise InputError(
                "unknown-name", f'--set {name}={value}: axis "{wrong[0]}" is not known', hint=f"known: {' '.join(AXES)}"
            )
        by_group[name.removeprefix("group.")] = axes
    return by_group


def axes_of(
    group: ProcessGroup, collective: Collective, world: int, named: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[str, ...] | None:
    """Returns the axes along which a group's ranks differ; None if nothing tells.

    What the user named or the group's description says comes first. Otherwise transfers are between stages, all-to-alls
    between experts, and the default group, one of all ranks or one of unknown size carries gradients.
    """
    own = (named or {}).get(group.name)
    if own is not None:
        return own
    words = group.description[:_MAX_DESCRIPTION].lower().replace(" ", "_").replace("-", "_")
    for pattern, axes in _DESCRIPTIONS:
        if words not in ("", "undefined", "default_pg") and pattern.search(words):
            return axes
    if collective is Collective.TRANSFER:
        return ("pp",)
    if collective is Collective.ALL_TO_ALL:
        return ("ep",)
    size = group.size if group.size > 0 else len(group.ranks)
    if words == "default_pg" or size == world or size <= 0:
        return ("dp",)
    return None


def axis_word(group: ProcessGroup, collective: Collective) -> str:
    """Returns the word that reports use for the time spent in a group."""
    axes = axes_of(group, collective, -1)
    if axes:
        return axes[0]
    return f"group {group.name}" if group.name else "unnamed group"
