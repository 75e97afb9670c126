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
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from foretrace.basics.errors import InputError
from foretrace.basics.files import LARGEST_FILE_BYTES, read_whole
from foretrace.basics.outputs import write_whole
from foretrace.program.kernels import Kernel, kernel_text, parse_kernels

if TYPE_CHECKING:
    from foretrace.basics.arrays import Floats

    Floats = Floats

VERSION: Final = 1
_TITLE: Final = "foretrace kernel profile"
_GZIP: Final = b"\x1f\x8b"
_MAX_S: Final = 1e3
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
    lines = [f"# {_TITLE}: {VERSION}"]
    lines += [f"# {_plain(key)}: {_plain(value)}" for key, value in facts.items()]
    lines += [f"## {_plain(remark)}" for remark in remarks]
    lines += [
        f"{kernel_text(times.kernel)}\t{times.burst_s:.5g}\t{times.sustained_s:.5g}\t{times.clock_mhz:.0f}\t{times.power_w:.0f}"
        for times in measured
    ]
    data = ("\n".join(lines) + "\n").encode()
    write_whole(path, [gzip.compress(data, mtime=0) if path.suffix == ".gz" else data], "kernel profile")


def read_profile(path: str | Path) -> KernelProfile:
    """The profile in a file, packed by gzip or plain."""
    import numpy as np  # writing must not need it

    lines = _text(path).splitlines()
    if not lines or not lines[0].startswith(f"# {_TITLE}:"):
        raise InputError("wrong-format", "this is no kernel profile", where=f"{path}:1", hint=_HINT)
    version = lines[0].partition(":")[2].strip()
    if version != str(VERSION):
        raise InputError(
            "unknown-version", f'version "{version}" of the format is not known', where=f"{path}:1", hint=_HINT
        )
    facts: dict[str, str] = {}
    rows: list[KernelTimes] = []
    seen: dict[Kernel, int] = {}
    for number, line in enumerate(lines[1:], 2):
        where = f"{path}:{number}"
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
    return " ".join(str(text).split())


def _text(path: str | Path) -> str:
    data = read_whole(path, "kernel profile", _HINT)
    try:
        if data.startswith(_GZIP):
            data = _unpacked(data, path)
        return data.decode("utf-8")
    except (OSError, EOFError, zlib.error):
        raise InputError("bad-compression", "the packed file is damaged or cut off", where=str(path)) from None
    except UnicodeDecodeError:
        raise InputError("not-text", "this is not text", where=str(path), hint=_HINT) from None


def _unpacked(data: bytes, path: str | Path) -> bytes:
    from io import BytesIO

    with gzip.GzipFile(fileobj=BytesIO(data)) as stream:
        unpacked = stream.read(LARGEST_FILE_BYTES + 1)
    if len(unpacked) > LARGEST_FILE_BYTES:
        raise InputError("input-too-large", "the file has more than 512 MiB when unpacked", where=str(path), hint=_HINT)
    return unpacked


def _read_fact(line: str, facts: dict[str, str], where: str) -> None:
    if line.startswith("##"):
        return
    key, colon, value = line[1:].partition(":")
    if not colon or not key.strip():
        raise InputError("bad-syntax", 'a line of the header is "# key: value"', where=where)
    if key.strip() in facts:
        raise InputError("duplicate-name", f'"{key.strip()}" is in the header twice', where=where)
    facts[key.strip()] = value.strip()


def _read_row(line: str, where: str) -> KernelTimes:
    text, *fields = line.split("\t")
    if len(fields) != 4:
        raise InputError("bad-syntax", f"the line has {len(fields) + 1} fields instead of 5", where=where, hint=_FIELDS)
    try:
        parsed = parse_kernels(text)
    except InputError as error:
        raise InputError(error.code, error.message, where=where, hint=error.hint) from None
    count, kernel = parsed[0]
    if len(parsed) != 1 or count != 1:
        raise InputError("bad-syntax", "a line of a profile is one kernel", where=where, hint=_FIELDS)
    return KernelTimes(
        kernel,
        _figure(fields[0], "burst time", where, positive=True),
        _figure(fields[1], "sustained time", where, positive=True),
        _figure(fields[2], "clock", where),
        _figure(fields[3], "power", where),
    )


def _figure(text: str, what: str, where: str, positive: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError("bad-value", f'the {what} "{text}" is no number', where=where, hint=_FIELDS) from None
    if not math.isfinite(value) or value < 0 or (positive and not 0 < value <= _MAX_S):
        allowed = f"above 0 and at most {_MAX_S:g}" if positive else "0 or more"
        raise InputError("out-of-range", f"the {what} {text} is not {allowed}", where=where, hint=_FIELDS)
    return value
