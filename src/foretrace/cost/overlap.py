"""Models what a kernel loses to a concurrent collective: the SMs that its channels hold, and memory bandwidth.

A block of NCCL leaves no room on its SM for a block of a matrix product, and stays from the first byte to the last. How
a kernel does with the remaining SMs depends on how it deals out its work, as `benchmarks/gpu/overlap.py` measured on an
H200 under a copy that holds SMs as NCCL does (`benchmarks/gpu/overlap_h200.csv`, `docs/overlap.md`):

- *Products* of cuBLAS on Hopper launch a block for every SM. Each begins with a tile of its own and then takes the next
  one that is left. Blocks that find no SM begin when the others are done, with their own tile, so there is one more
  wave: a product of one wave takes two, however few SMs are held. Before Hopper there are as many blocks as tiles.
- *Grouped products* deal out all tiles beforehand: all tiles of a block that finds no SM are computed afterwards.
- *Attention* and *streams* slow down as the SMs become fewer; a stream only where its SMs, not the memory, limit it.
- The remaining memory rate is shared in proportion to what each would use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.basics.elementary import p_norm
from foretrace.cost.network.call_book import CallBook
from foretrace.cost.network.interface import Explained
from foretrace.cost.network.layouts import CallRequest
from foretrace.hardware.cluster import Gpu
from foretrace.program.columns import ONE_TO_ONE, Collective
from foretrace.program.dispatch import COPIES
from foretrace.program.kernels import Gemm, GroupedGemm, Kernel, Stream

TILES: Final = ((256, 128), (128, 256))
"""The tiles of most products on Hopper, by the names of cuBLAS's kernels; smaller results are split along k."""

CLUSTERED: Final = ("Hopper", "Blackwell", "Blackwell Ultra")
"""GPUs whose products run as pairs of blocks, one for every SM, that take tile after tile."""

FILLED: Final = 0.97
"""The least share of the SMs that have a tile, or a part of one: 128 of 132 as cuBLAS cuts small results."""

BYTES_PER_BYTE: Final = 3.0
"""Bytes that a collective moves in memory for each byte that a rank receives: it lands in a buffer, is read there, and
is written, or added to what is there, at its place (NCCL, `device/prims_simple.h`)."""

CHANNELS: Final = 24
"""SMs that a collective holds where nothing says how it runs: NCCL's log shows 24 channels on DGX A100 and H100."""

TRANSFER_CHANNELS: Final = 4
"""SMs that a transfer between two ranks holds: NCCL uses 2 channels to a peer beyond the node, and 2 from it."""

MAX_HELD: Final = 0.5
"""The largest share of a GPU's SMs that communication holds; beyond it nothing was measured."""

USE_STEP: Final = 0.02
"""Calls whose shares of the memory rate differ by less count as identical."""


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """What communication uses of a GPU while it runs: whole SMs, and bytes/s of its memory."""

    sms: int
    bytes_per_s: float


def resource_use(call: Explained, what: Collective) -> ResourceUse:
    """Returns what a call uses of each GPU that takes part in it."""
    channels = call.channels if call.channels or call.algorithm != "measured" else CHANNELS
    if what in ONE_TO_ONE:
        channels = min(channels, TRANSFER_CHANNELS)
    sent = sum(amount for _, amount in call.draws)
    return ResourceUse(channels, BYTES_PER_BYTE * sent / call.time_s if call.time_s > 0 else 0.0)


@dataclass(frozen=True, slots=True)
class Overlaps:
    """What ops that run concurrently on one rank cost each other, op by op.

    `slowdown[kernels[op], uses[other]]` says how many times as long a computing op takes while a communicating op runs.
    Both columns are -1 for ops that are not of their kind.
    """

    kernels: Longs
    uses: Longs
    slowdown: Floats


@dataclass(frozen=True, slots=True)
class Constants:
    """Fitted by `benchmarks/overlap.py` on every second of the kernels measured; for all GPUs."""

    stranded: float = 3.25
    """SMs that are free but of no use to pairs of blocks, since their partners are held."""
    memory_share: float = 0.86
    """The share of the datasheet's rate that kernels and copies reach together."""
    spare: float = 1.27
    """How many times as fast the SMs of a stream could run if memory let them."""
    spare_compute: float = 1.36
    """The same for what computes and memory does not bound."""
    sharpness: float = 2.97
    """The norm by which the longer of two limits decides: at 1 they add up."""


FITTED: Final = Constants()


def slowdowns(
    kernels: Sequence[Kernel], alone_s: Floats, uses: Sequence[ResourceUse], gpu: Gpu, constants: Constants = FITTED
) -> Floats:
    """Returns how many times as long each kernel takes under each use of its GPU: [kernels, uses], all at least 1.

    Args:
        kernels: what computes.
        alone_s: seconds that each kernel takes alone.
        uses: what concurrent communication takes of the GPU.
        gpu: the GPU; where its number of SMs is not known, every slowdown is 1.
        constants: the fitted constants of the model.
    """
    units = gpu.compute_units
    rows = _rows(kernels, gpu, constants)
    rate = gpu.memory_bytes_per_s * constants.memory_share
    share = np.divide(rows.moved_bytes, alone_s * rate, out=np.zeros(len(kernels)), where=alone_s > 0)
    base = _longer(np.ones(len(kernels)) / rows.spare, share, constants)
    slowdown = np.ones((len(kernels), len(uses)))
    holds = np.array([at for at, use in enumerate(uses) if units and use.sms], dtype=np.int64)
    if len(holds):
        sms, drawn = (np.array([getattr(uses[at], name) for at in holds]) for name in ("sms", "bytes_per_s"))
        held = _fewer(rows, np.minimum(sms, int(MAX_HELD * units)), gpu, constants) / rows.spare[:, None]
        under = _longer(held, share[:, None] + drawn / rate * (share > 0)[:, None], constants)
        slowdown[:, holds] = np.maximum(under / base[:, None], 1.0)
    return slowdown


@dataclass(frozen=True, slots=True)
class _Rows:
    """Kernels as columns. Products: tiles of one launch (0: none); `dealt`: whether they are dealt out beforehand;
    `spare` as in `Constants`."""

    moved_bytes: Floats
    tiles: Floats
    dealt: Mask
    spare: Floats


def _rows(kernels: Sequence[Kernel], gpu: Gpu, constants: Constants) -> _Rows:
    tiles = np.array([_tiles(kernel) for kernel in kernels], dtype=np.float64)
    return _Rows(
        np.array([kernel.moved_bytes for kernel in kernels], dtype=np.float64),
        np.where(tiles > 0, np.maximum(tiles, FILLED * gpu.compute_units), 0.0),
        np.array([isinstance(kernel, GroupedGemm) and not kernel.separate for kernel in kernels], dtype=bool),
        np.where([isinstance(kernel, Stream) for kernel in kernels], constants.spare, constants.spare_compute),
    )


def _tiles(kernel: Kernel) -> float:
    """Tiles of one launch of a product, the fewer of both ways to lay them; 0 of what is none."""
    if isinstance(kernel, Gemm):
        return kernel.batch * _cut(kernel.m, kernel.n)
    if isinstance(kernel, GroupedGemm):
        rows = kernel.m if kernel.layout == "nt" else kernel.m / kernel.groups
        return _cut(rows, kernel.n) * (1 if kernel.separate else kernel.groups)
    return 0.0


def _cut(rows: float, columns: float) -> float:
    return float(min(ceil(rows / high) * ceil(columns / wide) for high, wide in TILES))


def _fewer(rows: _Rows, held: Longs, gpu: Gpu, constants: Constants) -> Floats:
    """Returns how many times as long kernels take where calls hold `held` SMs: [kernels, held]."""
    units = gpu.compute_units
    clustered = gpu.architecture in CLUSTERED
    # NCCL takes no more channels than a GPU has SMs for, and leaves some to compute.
    held = np.minimum(held, units // 2)
    left = np.maximum(units - held - (constants.stranded if clustered else 0.0), 1.0)
    tiles = rows.tiles[:, None]
    blocks = np.minimum(tiles, units)
    waves = np.maximum(np.ceil(tiles / units), 1.0)
    late = np.maximum(blocks - left, 0.0)
    if clustered:
        fewer = np.where(late > 0, np.ceil((tiles - late) / left - 1e-9) + np.ceil(late / left), waves)
    else:
        fewer = np.ceil(tiles / (units - held))
    dealt = np.ceil(units / left)
    product = np.where(rows.dealt[:, None] & clustered, dealt, fewer / waves)
    return np.asarray(np.where(tiles > 0, product, units / (units - held)))


def _longer(first: Floats, second: Floats, constants: Constants) -> Floats:
    """The longer of two times, with a smooth transition where they are close."""
    return p_norm(first, second, constants.sharpness)


@dataclass(frozen=True, slots=True)
class CallUses:
    """The resource uses of calls: the distinct kinds, and the kind of each call."""

    kinds: tuple[ResourceUse, ...]
    of_call: Longs
    """The number of the kind; -1 for a call that uses nothing."""


def call_uses(calls: int, requests: Sequence[CallRequest], book: CallBook, gpu: Gpu) -> CallUses:
    """Returns what each call uses of the GPUs in it, as the network says it runs.

    All ranks get the use of the first one that is priced, since ranks differ only in their places.
    """
    numbers: dict[ResourceUse, int] = {}
    of_call = np.full(calls, -1, dtype=np.int64)
    step = max(gpu.memory_bytes_per_s * USE_STEP, 1.0)
    for kind, (_, columns), what, sizes, way in requests:
        new = of_call[columns] < 0
        if way == COPIES or not new.any():
            continue
        number_of: dict[float, int] = {}
        distinct_sizes = list(dict.fromkeys(sizes[new].tolist()))
        for size, explained in zip(
            distinct_sizes, book.explain_all(what, kind, np.array(distinct_sizes), way), strict=True
        ):
            use = resource_use(explained, what)
            rounded = ResourceUse(use.sms, step * round(use.bytes_per_s / step))
            number_of[size] = numbers.setdefault(rounded, len(numbers))
        of_call[columns[new]] = [number_of[size] for size in sizes[new].tolist()]
    return CallUses(tuple(numbers), of_call)


def text_slowdowns(
    of_text: Longs, texts: int, kernels: Sequence[Kernel], alone_s: Floats, counts: Floats, uses: CallUses, gpu: Gpu
) -> Floats:
    """Returns how many times as long each text of kernels takes under each kind of use: [texts, kinds].

    Args:
        of_text: the text that each kernel belongs to.
        texts: the number of texts.
        kernels: the kernels of all texts.
        alone_s: seconds that each kernel takes alone.
        counts: how often its text runs each kernel.
        uses: what concurrent calls take of the GPU.
        gpu: the GPU.
    """
    slower = slowdowns(kernels, alone_s, uses.kinds, gpu)
    seconds = counts * alone_s
    whole = np.bincount(of_text, weights=seconds, minlength=texts)
    slowdown = np.ones((texts, len(uses.kinds)))
    for at in range(len(uses.kinds)):
        under = np.bincount(of_text, weights=seconds * slower[:, at], minlength=texts)
        slowdown[:, at] = np.where(whole > 0, under / np.where(whole > 0, whole, 1.0), 1.0)
    return slowdown
