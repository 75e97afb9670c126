"""Kernels: what a compute op launches, with shapes, so that a price can be found for it.

An op carries its kernels as one text (its `kernel` column): `gemm m=8192 n=4096 k=1024 ...`; several that run one
after the other are joined by `; `, and `3*` before one says how often it runs. Everything here is a fact about the
work; what it takes is for `cost` to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Final, TypeAlias

from foretrace.basics.errors import InputError, quoted
from foretrace.basics.numbers import NumberError, whole_number

DTYPE_BYTES: Final = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp8_block": 1, "mxfp8": 1, "nvfp4": 0.5}
"""Bytes of an element by the recipe of a GEMM's operands; scales of blocks are left out (3 % for mxfp8)."""


PEAK_OF: Final = {"fp8_block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
"""Under which dtype a datasheet lists the dense peak of a recipe's products, where it is called otherwise."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """`batch` products of [m, k] and [k, n]. Layout as cuBLAS names it: `tn` the forward of a linear layer, `nn` its
    input gradient, `nt` its weight gradient. `out` is the dtype written; `accumulate` adds to what is there."""

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    layout: str = "tn"
    batch: int = 1
    out: str = "bf16"
    accumulate: bool = False

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def moved_bytes(self) -> float:
        """Operands read and result written, each once."""
        operands = DTYPE_BYTES[self.dtype] * (self.m * self.k + self.k * self.n)
        return self.batch * (operands + DTYPE_BYTES[self.out] * (1 + self.accumulate) * self.m * self.n)

    @property
    def launches(self) -> int:
        """Kernels the host launches for it."""
        return 1


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """One product per group (expert). Forward and input gradient (`tn`, `nn`): m is the sum of all groups' rows; weight
    gradient (`nt`): k is. `largest` is the busiest group's part of that sum; `separate` says that each group is a
    launch."""

    groups: int
    m: int
    n: int
    k: int
    dtype: str = "bf16"
    layout: str = "tn"
    largest: int = 0
    out: str = "bf16"
    accumulate: bool = False
    separate: bool = False

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.m * self.n * self.k

    @property
    def moved_bytes(self) -> float:
        """Operands read and results written, each once."""
        size = DTYPE_BYTES[self.dtype]
        written = DTYPE_BYTES[self.out] * (1 + self.accumulate)
        if self.layout == "nt":
            return size * self.k * (self.m + self.n) + written * self.groups * self.m * self.n
        return size * (self.m * self.k + self.groups * self.k * self.n) + written * self.m * self.n

    @property
    def launches(self) -> int:
        """Kernels the host launches for it."""
        return self.groups if self.separate else 1


@dataclass(frozen=True, slots=True)
class Attention:
    """Fused attention of `batch` sequences: `pairs` is how many (query, key) pairs each head of one sequence attends to
    (about q·kv/2 where it is causal). `backend` says whose kernel: flash1, triton, flash2, flash3, cudnn, or cudnn_2025
    up to version 9.12. `window` is how many keys a query sees at most (0: all before it)."""

    batch: int
    heads: int
    kv_heads: int
    q: int
    kv: int
    head_dim: int
    v_dim: int
    pairs: int
    backward: bool = False
    backend: str = "cudnn"
    dtype: str = "bf16"
    window: int = 0

    @property
    def flops(self) -> float:
        """Two products forward; backward computes the scores again and four more: 2.5 times as much."""
        forward = 2.0 * self.batch * self.heads * self.pairs * (self.head_dim + self.v_dim)
        if not self.backward:
            return forward
        return 2.0 * self.batch * self.heads * self.pairs * (3 * self.head_dim + 2 * self.v_dim)

    @property
    def moved_bytes(self) -> float:
        """Queries, keys, values and output once; backward also their gradients and the output's."""
        size = DTYPE_BYTES[self.dtype] * self.batch
        ends = self.heads * self.q * (self.head_dim + self.v_dim) + self.kv_heads * self.kv * (
            self.head_dim + self.v_dim
        )
        return size * ends * (2 if self.backward else 1)

    @property
    def launches(self) -> int:
        """Kernels the host launches for it: backward sets the queries' fp32 gradient to zero, sums outputs times
        gradients, and converts that gradient last; cuDNN adds up gradients of keys that queries share in one more."""
        if not self.backward:
            return 1
        return 5 if self.backend.startswith("cudnn") and self.kv_heads < self.heads else 4


@dataclass(frozen=True, slots=True)
class Stream:
    """A kernel that memory bounds: norms, activations, copies, the optimizer. `name` is the key under which it is
    measured; `read` and `write` are bytes, spread over `launches` kernels; `rows` is the length of what it
    reduces over (0: none); `fixed` is how many of the bytes are the same whatever the samples of a step (parameters,
    their gradients); `looped` says that one call of the host launches all kernels, in a loop in C++; `element` is the
    bytes of one of its elements."""

    name: str
    read: int
    write: int
    launches: int = 1
    rows: int = 0
    fixed: int = 0
    looped: bool = False
    element: int = 2

    @property
    def flops(self) -> float:
        """Not counted."""
        return 0.0

    @property
    def moved_bytes(self) -> float:
        """Read and written."""
        return float(self.read + self.write)


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes between GPU and host memory: `to` is host or gpu."""

    bytes: int
    to: str = "host"

    @property
    def flops(self) -> float:
        """None."""
        return 0.0

    @property
    def moved_bytes(self) -> float:
        """As many as are copied."""
        return float(self.bytes)

    @property
    def launches(self) -> int:
        """Kernels the host launches for it."""
        return 1


Kernel: TypeAlias = Gemm | GroupedGemm | Attention | Stream | Copy

_KINDS: Final[dict[str, type[Kernel]]] = {
    "gemm": Gemm,
    "grouped_gemm": GroupedGemm,
    "attention": Attention,
    "stream": Stream,
    "copy": Copy,
}
_WORDS: Final = {kind: name for name, kind in _KINDS.items()}
_FIELD_TYPES: Final = {kind: {field.name: str(field.type) for field in fields(kind)} for kind in _WORDS}
"""The names and types of the fields of every kind; `fields` itself would take a fifth of the time of parsing."""


MAX_SIZE: Final = 1 << 60
MAX_COUNT: Final = 1_000_000_000
MAX_FLOPS: Final = 1e24
MAX_MOVED_BYTES: Final = 1e21
"""Limits on a text of kernels: a GPU of today would compute and move that for tens of years."""

_AT_LEAST_ONE: Final = ("groups", "launches", "element")
_CHOICES: Final = {
    "dtype": tuple(DTYPE_BYTES),
    "out": tuple(DTYPE_BYTES),
    "layout": ("tn", "nn", "nt", "tt"),
    "to": ("host", "gpu"),
}
"""The words that a field may have; those of other fields are free."""


@lru_cache(maxsize=65536)
def kernel_text(kernel: Kernel) -> str:
    """A kernel as text: its kind and what differs from the defaults, `name=value`."""
    kind = type(kernel)
    words = [_WORDS[kind]]
    for field in fields(kind):
        value = getattr(kernel, field.name)
        if value != field.default:
            words.append(f"{field.name}={int(value) if isinstance(value, bool) else value}")
    return " ".join(words)


def kernels_text(kernels: Iterable[tuple[int, Kernel]]) -> str:
    """Returns kernels that run one after the other, each with its count, as text."""
    return "; ".join(
        kernel_text(kernel) if count == 1 else f"{count}*{kernel_text(kernel)}" for count, kernel in kernels
    )


@lru_cache(maxsize=65536)
def parse_kernels(text: str) -> tuple[tuple[int, Kernel], ...]:
    """Reads what `kernels_text` wrote."""
    return tuple(_parse_one(part) for part in text.split("; "))


def _parse_one(text: str) -> tuple[int, Kernel]:
    count, star, rest = text.partition("*")
    if not star:
        count, rest = "1", text
    word, *pairs = rest.split(" ")
    kind = _KINDS.get(word)
    if kind is None:
        raise InputError("unknown-name", f"{_shown(text)} is not known", hint=f"known: {', '.join(_KINDS)}")
    types = _FIELD_TYPES[kind]
    try:
        values = {name: _value(name, types[name], value) for name, value in (pair.split("=", 1) for pair in pairs)}
        if len(values) < len(pairs):
            raise ValueError("a field is given twice")
        kernel, times = kind(**values), whole_number(count, least=1, most=MAX_COUNT)  # type: ignore[arg-type]
    except NumberError as error:
        raise InputError(error.code, f"{_shown(text)}: a number {error.problem}") from None
    except (KeyError, ValueError, TypeError):
        raise InputError("bad-value", f"{_shown(text)} cannot be read", hint=f"{word} has {', '.join(types)}") from None
    if times * kernel.flops > MAX_FLOPS or times * kernel.moved_bytes > MAX_MOVED_BYTES:
        raise InputError("out-of-range", f"{_shown(text)} is more than a GPU computes or moves in decades")
    return times, kernel


def _value(name: str, kind: str, text: str) -> int | str | bool:
    """Returns the value of a field; raises a `NumberError` or an `InputError` where it cannot be one."""
    if kind == "int":
        return whole_number(text, least=1 if name in _AT_LEAST_ONE else 0, most=MAX_SIZE)
    if kind == "bool":
        return bool(whole_number(text, most=1))
    if name in _CHOICES and text not in _CHOICES[name]:
        raise InputError(
            "unknown-name", f"{name} {quoted(text)} is not known", hint=f"known: {', '.join(_CHOICES[name])}"
        )
    return text


def _shown(text: str) -> str:
    return f"kernel {quoted(text)}"


def grown(kernel: Kernel, factor: float) -> tuple[Kernel, float]:
    """Returns the kernel with `factor` times the samples, and the part of the factor that whole sizes cannot express.

    Half of one sequence, for example, is one sequence and a remaining factor of a half.

    Rows of a forward product or an input gradient are tokens, and the sum of a weight gradient runs over them; a
    batch of products is of sequences' heads or of experts' tokens; sequences attend each to itself. A stream's bytes
    grow but for those that are `fixed`.
    """
    if isinstance(kernel, Gemm) and kernel.batch > 1:
        batch, left = _whole(kernel.batch, factor)
        return replace(kernel, batch=batch), left
    if isinstance(kernel, Gemm):
        if kernel.layout == "nt":
            k, left = _whole(kernel.k, factor)
            return replace(kernel, k=k), left
        m, left = _whole(kernel.m, factor)
        return replace(kernel, m=m), left
    if isinstance(kernel, GroupedGemm):
        largest = round(kernel.largest * factor)
        if kernel.layout == "nt":
            k, left = _whole(kernel.k, factor)
            return replace(kernel, k=k, largest=largest), left
        m, left = _whole(kernel.m, factor)
        return replace(kernel, m=m, largest=largest), left
    if isinstance(kernel, Attention):
        batch, left = _whole(kernel.batch, factor)
        return replace(kernel, batch=batch), left
    if isinstance(kernel, Copy):
        return replace(kernel, bytes=round(kernel.bytes * factor)), 1.0
    return _grown_stream(kernel, factor), 1.0


def _grown_stream(kernel: Stream, factor: float) -> Stream:
    total = kernel.read + kernel.write
    fixed = min(kernel.fixed, total)
    if fixed == total:
        return kernel
    times = (fixed + (total - fixed) * factor) / total
    return replace(kernel, read=round(kernel.read * times), write=round(kernel.write * times))


def _whole(size: int, factor: float) -> tuple[int, float]:
    new = max(round(size * factor), 1)
    return new, size * factor / new
