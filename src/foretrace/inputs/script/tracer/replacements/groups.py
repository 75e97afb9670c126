"""Makes torch.distributed use process groups whose calls are recorded.

A call computes known values as if every other rank held the values of this rank.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from foretrace.inputs.script.recording import DEFAULT_STREAM, Group, HostEffort, IssuedCall, Place
from foretrace.inputs.script.tracer.dispatch import Recorder
from foretrace.inputs.script.tracer.patches import Patches
from foretrace.inputs.script.tracer.replacements.process_group import CallHandle, RecordedGroup
from foretrace.inputs.script.tracer.signatures import type_name
from foretrace.inputs.script.tracer.storages import CPU, is_simulated
from foretrace.program.columns import Collective, Phase

BACKEND: Final = "foretrace"
_NOWHERE: Final = Place(Phase.NONE, -1, 0)


class GroupBook:
    """All process groups of a rank, and how their calls are recorded."""

    def __init__(self, recorder: Recorder, rank: int, world: int) -> None:
        self.recorder, self.log = recorder, recorder.log
        self.rank, self.world = rank, world
        self._numbers: dict[int, int] = {}
        self._groups: list[RecordedGroup] = []
        self._families: list[tuple[str, list[tuple[int, ...]]]] = []
        self._seen: set[int] = set()
        """The ranks of the last family."""
        self._future_stream = -1

    def future_stream(self) -> int:
        """Returns the stream on which callbacks of futures run."""
        if self._future_stream < 0:
            self._future_stream = self.log.new_stream()
        return self._future_stream

    def recorded_groups(self) -> list[Group]:
        """Returns the groups that calls refer to."""
        return [self._described(group, number) for number, group in enumerate(self._groups)]

    def note_group(self, ranks: Sequence[int], description: str) -> None:
        """Notes that a group was made, whether or not this rank is in it."""
        members = tuple(ranks)
        if self._families:
            known, groups = self._families[-1]
            if known == description and len(groups[0]) == len(members) and self._seen.isdisjoint(members):
                groups.append(members)
                self._seen.update(members)
                return
        self._families.append((description, [members]))
        self._seen = set(members)

    def record(
        self,
        group: RecordedGroup,
        what: Collective,
        name: str,
        size: int,
        like: torch.Tensor | None,
        own_stream: bool,
        results: Any,
        **more: Any,
    ) -> CallHandle:
        """Records a call of a group and returns its handle."""
        if isinstance(like, AsyncCollectiveTensor):
            like = like.trigger_wait()  # a call that is passed on must have ended
        if like is not None and self._is_of_host(like):
            return CallHandle(self, -1, results)
        number = self._numbers.get(id(group))
        if number is None:
            number = self._numbers[id(group)] = len(self._groups)
            self._groups.append(group)
        dtype = "" if like is None else type_name(like.dtype)
        call = IssuedCall(what, name, number, size, dtype, DEFAULT_STREAM, own_stream, _NOWHERE, HostEffort(), **more)
        return CallHandle(self, self.log.call(call), results)

    def _is_of_host(self, tensor: torch.Tensor) -> bool:
        # A simulated tensor of no known device belongs to a GPU: no script calls a collective on the meta device.
        return self.recorder.storages.device_of(tensor) == CPU

    def _described(self, group: RecordedGroup, number: int) -> Group:
        ranks = group.ranks
        for description, groups in self._families:
            if ranks in groups:
                return Group(_axis(description, number), ranks, tuple(groups))
        if len(ranks) == self.world:
            return Group("world", ranks, (ranks,))
        return Group(_axis(group.group_desc, number), ranks, (ranks,))

    def reduce_values(self, tensor: torch.Tensor, options: Any, size: int) -> None:
        """Reduces values that are known, as if every rank held them."""
        values = self.recorder.known(tensor)
        if values is None:
            return
        kind = str(getattr(options, "reduceOp", "SUM"))
        if "SUM" in kind:
            values.mul_(size)

    def copy_values(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copies values that are known."""
        if target.numel() == source.numel():
            self.recorder.copy_values(source.reshape(target.size()), target)
        else:
            self.forget([target])

    def tile_values(self, source: torch.Tensor, target: torch.Tensor, times: int) -> None:
        """Repeats values that are known."""
        values = self.recorder.known(source)
        if values is None or target.numel() != times * source.numel():
            self.forget([target])
            return
        tiled = values.reshape(-1).repeat(times).reshape(target.size())
        self.recorder.copy_values(tiled, target)

    def exchange_values(
        self, source: torch.Tensor, target: torch.Tensor, position: int, size: int, parts: Sequence[int]
    ) -> None:
        """Fills the output of an all-to-all as if all ranks sent the values of this rank."""
        values = self.recorder.known(source)
        rows = source.size(0) if source.dim() else 0
        sizes = list(parts) or ([rows // size] * size if rows % size == 0 else [])
        if values is None or not sizes or target.size(0) != size * sizes[position]:
            self.forget([target])
            return
        mine = values.split(sizes)[position]
        self.recorder.copy_values(torch.cat([mine] * size), target)

    def forget(self, tensors: Sequence[torch.Tensor]) -> None:
        """Drops values of tensors that a call writes to."""
        for tensor in tensors:
            if is_simulated(tensor):
                self.recorder.storages.forget(tensor)

    def install(self, patches: Patches) -> None:
        """Makes torch.distributed use these groups, whatever backend it is asked for."""

        def create(options: Any, _: Any = None) -> RecordedGroup:
            ranks = tuple(options.global_ranks_in_group) or tuple(range(self.world))
            return RecordedGroup(options.group_rank, options.group_size, self, ranks)

        dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", "cuda"])
        patches.on_undo(lambda: dist.Backend._plugins.pop(BACKEND.upper(), None))
        patches.on_undo(self._end_groups)
        self._install_setup(patches)
        _install_objects(patches, self)

    def _end_groups(self) -> None:
        """Ends groups that the script left, so that the process can make others."""
        if dist.is_initialized() and isinstance(c10d._get_default_group(), RecordedGroup):
            dist.destroy_process_group()

    def _install_setup(self, patches: Patches) -> None:
        start, new = dist.init_process_group, dist.new_group
        book = self

        def init_process_group(backend: Any = None, *_: Any, **given: Any) -> None:
            del backend
            kept = {name: value for name, value in given.items() if name in ("group_name", "pg_options")}
            kept.pop("pg_options", None)
            start(BACKEND, store=dist.HashStore(), rank=book.rank, world_size=book.world, **kept)
            book.note_group(range(book.world), "world")

        def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, **given: Any) -> Any:
            del timeout, backend
            given.pop("pg_options", None)
            given.pop("device_id", None)
            members = list(range(book.world)) if ranks is None else sorted(ranks)
            book.note_group(members, given.get("group_desc") or "")
            if book.rank not in members:
                return dist.GroupMember.NON_GROUP_MEMBER
            return new(members, backend=BACKEND, **given)

        for module in (dist, c10d):
            patches.set(module, "init_process_group", init_process_group)
            patches.set(module, "new_group", new_group)
            patches.set(module, "get_backend", lambda *_: "nccl")
            patches.set(module, "is_nccl_available", lambda: True)
            patches.set(module, "batch_isend_irecv", self._batch)
        patches.set(dist.device_mesh, "new_group", new_group)
        patches.set(dist.device_mesh, "get_backend", lambda *_: "nccl")
        patches.set(dist.device_mesh, "init_process_group", init_process_group)
        patches.set(c10d, "_store_based_barrier", lambda *_, **__: None)

    def _batch(self, ops: Sequence[Any]) -> list[CallHandle]:
        group: Any = ops[0].group or c10d._get_default_group()
        sends = [(op.group_peer, op.tensor) for op in ops if op.op in (dist.isend, c10d.isend)]
        receives = [(op.group_peer, op.tensor) for op in ops if op.op not in (dist.isend, c10d.isend)]
        return [group.exchange(sends, receives)]


def _install_objects(patches: Patches, book: GroupBook) -> None:
    """Exchanges Python objects as if every rank held those of this rank."""

    def all_gather_object(objects: list[Any], obj: Any, group: Any = None) -> None:
        del group
        objects[:] = [obj] * len(objects)

    def gather_object(obj: Any, objects: list[Any] | None = None, *_: Any, **__: Any) -> None:
        if objects is not None:
            objects[:] = [obj] * len(objects)

    def scatter_object_list(output: list[Any], objects: list[Any] | None = None, *_: Any, **__: Any) -> None:
        if objects:
            output[0] = objects[min(book.rank, len(objects) - 1)]

    def broadcast_object_list(*_: Any, **__: Any) -> None: ...

    for module in (dist, c10d):
        patches.set(module, "all_gather_object", all_gather_object)
        patches.set(module, "gather_object", gather_object)
        patches.set(module, "scatter_object_list", scatter_object_list)
        patches.set(module, "broadcast_object_list", broadcast_object_list)


def _axis(description: str, number: int) -> str:
    text = description.removeprefix("mesh_")
    return text if text and text not in ("undefined", "default") else f"group {number}"


def environment(rank: int, world: int, gpus: int) -> dict[str, str]:
    """Returns the variables that torchrun sets for a rank of a job with `gpus` GPUs on each node."""
    local = min(gpus, world)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % local),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(rank // local),
        "GROUP_WORLD_SIZE": str(-(-world // local)),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
