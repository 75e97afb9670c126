"""Reads and writes kernel profiles: the measured times of kernels on one GPU, one line per kernel.

    # foretrace kernel profile: 1
    # gpu: NVIDIA H200
    gemm m=8192 n=4096 k=1024<tab>1.02e-04<tab>1.17e-04<tab>1650<tab>690

The fields after the kernel are: seconds alone on a cool GPU (burst), seconds amid work like training's (sustained), the
mean frequency in MHz and the mean power in watts during the latter, 0 where unknown. `## ...` is a remark. Writing
needs only the standard library, since it happens on nodes where nothing is installed.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from foretrace.basics.errors import InputError, printable, quoted
from foretrace.basics.files import AnyFile, read_whole, unpack
from foretrace.basics.limits import check_limit
from foretrace.basics.numbers import real_field
from foretrace.basics.outputs import write_whole
from foretrace.program.kernels import (
    Attention,
    Copy,
    Gemm,
    GroupedGemm,
    Kernel,
    Stream,
    kernel_text,
    parse_kernels,
)

if TYPE_CHECKING:
    from foretrace.basics.arrays import Floats

    Floats = Floats

VERSION: Final = 1
_TITLE: Final = "foretrace kernel profile"
MAX_BYTES: Final = 32 << 20
"""Bytes of a profile, packed or not: one of 2,000 kernels has 160 kB."""
MAX_LINES: Final = 200_000
_MAX_LINE: Final = 1000
_MAX_FACTS: Final = 200
_MIN_S, _MAX_S = 1e-8, 1e3
_MAY_BE_ZERO: Final = frozenset({"read", "write", "rows", "fixed", "largest", "window"})
_SIZES: Final[dict[type, tuple[str, ...]]] = {
    kind: tuple(field.name for field in fields(kind) if field.type == "int" and field.name not in _MAY_BE_ZERO)
    for kind in (Gemm, GroupedGemm, Attention, Stream, Copy)
}
"""The sizes of each kind of kernel that are at least 1."""
_MAX_CLOCK_MHZ, _MAX_POWER_W = 1e5, 1e5
_HINT: Final = f'a kernel profile begins "# {_TITLE}: {VERSION}"; `foretrace measure gpu` writes one'
_FIELDS: Final = "<kernel>, burst s, sustained s, clock MHz, power W; between tabs"


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """One kernel's times in seconds, with the clock (MHz) and power (W) while the second was taken; 0: unknown."""

    kernel: Kernel
    burst_s: float
    sustained_s: float
    clock_mhz: float = 0.0
    power_w: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """A profile as read: `facts` is its header, the rest is by kernel, in the order of the file."""

    facts: Mapping[str, str]
    kernels: tuple[Kernel, ...]
    burst_s: Floats
    sustained_s: Floats
    clock_mhz: Floats
    power_w: Floats


def write_profile(
    path: Path, facts: Mapping[str, str], measured: Iterable[KernelTimes], remarks: Sequence[str] = ()
) -> None:
    """Writes a profile in one go, packed where the name ends in .gz."""
    data = profile_text(facts, measured, remarks).encode()
    write_whole(path, [gzip.compress(data, mtime=0) if path.suffix == ".gz" else data], "kernel profile")


def profile_text(facts: Mapping[str, str], measured: Iterable[KernelTimes], remarks: Sequence[str] = ()) -> str:
    """Returns the text of a profile."""
    lines = [f"# {_TITLE}: {VERSION}"]
    lines += [f"# {_plain(key)}: {_plain(value)}" for key, value in facts.items()]
    lines += [f"## {_plain(remark)}" for remark in remarks]
    lines += [
        f"{kernel_text(times.kernel)}\t{times.burst_s:.5g}\t{times.sustained_s:.5g}\t{times.clock_mhz:.0f}\t{times.power_w:.0f}"
        for times in measured
    ]
    return "\n".join(lines) + "\n"


def read_profile(path: AnyFile) -> KernelProfile:
    """Returns the profile in a file, packed by gzip or plain."""
    data = read_whole(path, "kernel profile", _HINT, MAX_BYTES)
    try:
        text = unpack(data, "kernel profile", str(path), MAX_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("not-text", "this is not text", where=str(path), hint=_HINT) from None
    return parse_profile(text, str(path))


def parse_profile(text: str, path: str) -> KernelProfile:
    """Returns the profile in a text that errors call `path`."""
    import numpy as np  # writing must not need it

    check_limit(text.count("\n"), MAX_LINES, "lines", path)
    lines = text.splitlines()
    if not lines or not lines[0].startswith(f"# {_TITLE}:"):
        raise InputError("wrong-format", "this is no kernel profile", where=f"{path}:1", hint=_HINT)
    version = lines[0].partition(":")[2].strip()
    if version != str(VERSION):
        raise InputError(
            "unknown-version",
            f"version {quoted(version)} of the format is not known",
            where=f"{path}:1",
            hint=_HINT,
        )
    facts: dict[str, str] = {}
    rows: list[KernelTimes] = []
    seen: dict[Kernel, int] = {}
    for number, line in enumerate(lines[1:], 2):
        where = f"{path}:{number}"
        if len(line) > _MAX_LINE:
            raise InputError("bad-syntax", f"the line has {len(line):,} characters", where=where, hint=_FIELDS)
        if line.startswith("#"):
            _read_fact(line, facts, where)
        elif line.strip():
            row = _read_row(line, where)
            if row.kernel in seen:
                raise InputError(
                    "duplicate-name",
                    "this kernel is in the profile twice",
                    where=where,
                    hint=f"see line {seen[row.kernel]}",
                )
            seen[row.kernel] = number
            rows.append(row)
    if not rows:
        raise InputError("empty-file", "the profile has no kernel", where=str(path), hint=_HINT)
    return KernelProfile(
        facts,
        tuple(row.kernel for row in rows),
        np.array([row.burst_s for row in rows]),
        np.array([row.sustained_s for row in rows]),
        np.array([row.clock_mhz for row in rows]),
        np.array([row.power_w for row in rows]),
    )


def _plain(text: str) -> str:
    return printable(" ".join(str(text).split()))


def _read_fact(line: str, facts: dict[str, str], where: str) -> None:
    if line.startswith("##"):
        return
    key, colon, value = line[1:].partition(":")
    if not colon or not key.strip():
        raise InputError("bad-syntax", 'a line of the header is "# key: value"', where=where)
    if key.strip() in facts:
        raise InputError("duplicate-name", f"{quoted(key.strip())} is in the header twice", where=where)
    facts[key.strip()] = value.strip()
    check_limit(len(facts), _MAX_FACTS, "lines of a header", where)


def _read_row(line: str, where: str) -> KernelTimes:
    text, *figures = line.split("\t")
    if len(figures) != 4:
        raise InputError(
            "bad-syntax", f"the line has {len(figures) + 1} fields instead of 5", where=where, hint=_FIELDS
        )
    if printable(text) != text:  # a calibration could not be read again with such a kernel
        raise InputError("not-text", f"kernel {quoted(text)} has control characters", where=where, hint=_FIELDS)
    try:
        parsed = parse_kernels(text)
    except InputError as error:
        problem = f"kernel {quoted(text)} is not known or cannot be read"
        raise InputError(error.code, problem, where=where, hint=error.hint) from None
    count, kernel = parsed[0]
    if len(parsed) != 1 or count != 1:
        raise InputError("bad-syntax", "a line of a profile is one kernel", where=where, hint=_FIELDS)
    _check_kernel(kernel, where)
    return KernelTimes(
        kernel,
        real_field("the burst time", figures[0], where, least=_MIN_S, most=_MAX_S, hint=_FIELDS),
        real_field("the sustained time", figures[1], where, least=_MIN_S, most=_MAX_S, hint=_FIELDS),
        real_field("the clock", figures[2], where, most=_MAX_CLOCK_MHZ, hint=_FIELDS),
        real_field("the power", figures[3], where, most=_MAX_POWER_W, hint=_FIELDS),
    )


def _check_kernel(kernel: Kernel, where: str) -> None:
    """Raises an error where the kernel does nothing, which programs may have and nobody measures."""
    for name in _SIZES[type(kernel)]:
        if not getattr(kernel, name):
            raise InputError("out-of-range", f"the kernel has {name}=0", where=where)
    if isinstance(kernel, Stream) and not kernel.read + kernel.write:
        raise InputError("out-of-range", "the kernel moves no bytes", where=where)
