"""Knows the memory of simulated tensors: which device it is on, how long it lives, and which values are known.

A simulated tensor is one of PyTorch's meta device, which has sizes and no data. Its storage tells which device it
stands for. Storages of small whole numbers may have a shadow: a real storage on the CPU with their values, so that
sizes that a script reads back (counts, offsets, masks) are what they would be on a GPU.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Final

import torch

from foretrace.inputs.script.recording import StorageLife
from foretrace.inputs.script.tracer.events import EventLog
from foretrace.program.columns import Category, Phase

META: Final = torch.device("meta")
CPU: Final = torch.device("cpu")

_keys_of: Final = torch._C._dispatch_keys
_META_KEY: Final = torch._C.DispatchKey.Meta


def is_simulated(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is of PyTorch's meta device; nothing that a script replaces changes the answer."""
    return bool(_keys_of(tensor).has(_META_KEY))


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of the elements of a tensor."""
    return tensor.numel() * tensor.element_size()


SHADOW_ELEMENTS: Final = 1 << 22
"""Elements up to which values of whole numbers are kept."""

SHADOW_REALS: Final = 64
"""Elements up to which values of other types are kept where a script writes them down: scales, learning rates."""


@dataclass(slots=True)
class Storage:
    """A storage of simulated tensors.

    Attributes:
        device: The device that it stands for.
        shadow: A real storage with its values; None where they are not known.
        reference: Reports when PyTorch frees the storage.
        bytes: Its size at present.
        life: The number of its present life among `Storages.lives`, which is also its number in the recording; -1 while
            it has no bytes, and for memory that is not the GPU's.
    """

    device: torch.device
    shadow: Any = None
    reference: Any = None
    bytes: int = 0
    life: int = -1


@dataclass(slots=True)
class _Life:
    bytes: int
    allocated: int
    released: int
    phase: Phase
    category: Category | None = None


class Storages:
    """All storages of simulated tensors, by the address of their C++ object."""

    def __init__(self, log: EventLog, device: torch.device) -> None:
        self._log = log
        self.device = device
        self._known: dict[int, Storage] = {}
        self.lives: list[_Life] = []
        self.held_bytes = self.peak_bytes = 0

    def of(self, tensor: torch.Tensor) -> Storage | None:
        """Returns the storage of a simulated tensor; None for others."""
        if not is_simulated(tensor):
            return None
        return self._known.get(tensor.untyped_storage()._cdata)

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """Returns the device that a tensor stands for."""
        if not is_simulated(tensor):
            return CPU
        known = self._known.get(tensor.untyped_storage()._cdata)
        return META if known is None else known.device

    def add(self, tensor: torch.Tensor, device: torch.device, phase: Phase) -> Storage:
        """Registers the storage of a tensor of the meta device, unless it is known."""
        raw = tensor.untyped_storage()
        key = raw._cdata
        known = self._known.get(key)
        if known is not None:
            return known
        storage = Storage(device)
        storage.reference = weakref.ref(raw, lambda _: self._freed(key))
        self._known[key] = storage
        self._resize(storage, raw.nbytes(), phase)
        return storage

    def resized(self, raw: Any, phase: Phase) -> None:
        """Notes that a storage has another size now."""
        storage = self._known.get(raw._cdata)
        if storage is not None:
            self._resize(storage, raw.nbytes(), phase)

    def mark(self, tensor: torch.Tensor, category: Category) -> None:
        """States the category of the memory of a tensor."""
        storage = self.of(tensor)
        if storage is not None and storage.life >= 0:
            self.lives[storage.life].category = category

    def recorded_lives(self) -> list[StorageLife]:
        """Returns the lives of all device memory."""
        return [StorageLife(life.bytes, life.allocated, life.released, _category(life)) for life in self.lives]

    def number_of(self, tensor: torch.Tensor) -> int:
        """Returns the number of a tensor's device memory in the recording; -1 where it has none."""
        storage = self.of(tensor)
        return -1 if storage is None else storage.life

    def _resize(self, storage: Storage, size: int, phase: Phase) -> None:
        if storage.device.type == "cuda" and size != storage.bytes:
            self._end(storage)
            if size:
                storage.life = len(self.lives)
                self.lives.append(_Life(size, self._log.next_number, -1, phase))
                self.held_bytes += size
                self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        storage.bytes = size

    def _freed(self, key: int) -> None:
        storage = self._known.pop(key, None)
        if storage is not None:
            self._end(storage)

    def _end(self, storage: Storage) -> None:
        if storage.life >= 0:
            life = self.lives[storage.life]
            life.released = self._log.next_number
            self.held_bytes -= life.bytes
            storage.life = -1

    def shadow(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns a real tensor with the values of a simulated one, where they are known; it shares their memory."""
        storage = self.of(tensor)
        if storage is None or storage.shadow is None:
            return None
        real = torch.empty(0, dtype=tensor.dtype)
        return real.set_(storage.shadow, tensor.storage_offset(), tensor.size(), tensor.stride())

    def set_shadow(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Gives a simulated tensor, which fills its storage, the values of a real one."""
        storage = self.of(tensor)
        if storage is None:
            return
        raw = torch.UntypedStorage(storage.bytes or tensor.untyped_storage().nbytes())
        storage.shadow = raw
        real = torch.empty(0, dtype=tensor.dtype)
        real.set_(raw, tensor.storage_offset(), tensor.size(), tensor.stride())
        real.copy_(values)

    def forget(self, tensor: torch.Tensor) -> None:
        """Drops the values of a tensor, as after a write of unknown ones."""
        storage = self.of(tensor)
        if storage is not None:
            storage.shadow = None


def _category(life: _Life) -> Category:
    if life.category is not None:
        return life.category
    if life.phase in (Phase.FORWARD, Phase.RECOMPUTE):
        return Category.ACTIVATIONS
    return Category.OPTIMIZER if life.phase is Phase.OPTIMIZER and life.released < 0 else Category.TEMPORARIES
