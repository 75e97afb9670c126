"""Reads SimAI-Analytical's own command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from sys import float_info
from typing import Final

from foretrace.basics.errors import Diagnostic, UsageError, did_you_mean, quoted
from foretrace.basics.numbers import NumberError, real_number

_WHOLE: Final = re.compile("[+-]?[0-9]+")
_REAL: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""Numbers that C++ reads as they are meant."""
_MAX_COUNT: Final = (1 << 31) - 1

NVLINK_GB_PER_S: Final[Mapping[str, float]] = {
    "A100": 20.0 * 12,
    "A800": 20.0 * 8,
    "H100": 20.6 * 18,
    "H800": 20.6 * 8,
    "H20": 20.6 * 18,
}
"""NVLink bandwidth of one GPU, one direction, as SimAI's calbusbw.h has it: GB/s of a link times links."""

NIC_GB_PER_S: Final[Mapping[str, float]] = {"cx6": 23.5, "cx7": 48.5, "bf3": 48.5}
"""Bandwidth of one NIC, as SimAI's calbusbw.h has it."""

_LONG: Final[Mapping[str, str]] = {
    "--workload": "-w",
    "--gpus": "-g",
    "--gpus-per-server": "-g_p_s",
    "--nic_per_server": "-n_p_s",
    "--nvlink": "-nv",
    "--nic_busbw": "-nic",
    "--nic_type": "-nic_t",
    "--gpu_type": "-g_type",
    "--dp_overlap": "-dp_o",
    "--tp_overlap": "-tp_o",
    "--ep_overlap": "-ep_o",
    "--pp_overlap": "-pp_o",
    "--result": "-r",
    "--result_folder": "-r_f",
    "--visual": "-v",
    "--lang": "-l",
}
_SHORT: Final = tuple(_LONG.values())
_KNOWN: Final = (*_SHORT, *_LONG)


@dataclass(frozen=True, slots=True)
class SimaiFlags:
    """The command line of SimAI-Analytical. Bandwidths are in GB/s of one direction; None: not given.

    `gpu_type` and `nic_type` are as in SimAI's tables (`H100`, `cx7`); overlaps are fractions of the time hidden.
    `pp_overlap` is 1 unless given, which hides all pipeline transfers.
    """

    gpus: int
    gpus_per_server: int
    nics_per_server: int
    gpu_type: str | None = None
    nic_type: str = "cx7"
    nvlink_gb_per_s: float | None = None
    nic_gb_per_s: float | None = None
    dp_overlap: float = 0.0
    tp_overlap: float = 0.0
    ep_overlap: float = 0.0
    pp_overlap: float = 1.0
    pp_overlap_given: bool = False
    prefix: str | None = None
    folder: str | None = None
    visual: bool = False
    language: str = "en"
    workload: str | None = None
    diagnostics: tuple[Diagnostic, ...] = field(default=(), compare=False)

    @property
    def nvlink_rate_gb_per_s(self) -> float:
        """NVLink bandwidth of one GPU: as given, else that of the GPU type; an unset one is SimAI's first, A100."""
        if self.nvlink_gb_per_s is not None:
            return self.nvlink_gb_per_s
        return NVLINK_GB_PER_S[self.gpu_type or "A100"]

    @property
    def nic_rate_gb_per_s(self) -> float:
        """Bandwidth of one NIC: as given, else that of the NIC type."""
        return NIC_GB_PER_S[self.nic_type] if self.nic_gb_per_s is None else self.nic_gb_per_s


def parse_flags(arguments: Sequence[str], *, workload: str | None = None) -> SimaiFlags:
    """The flags of a SimAI-Analytical command line; a `-w` that names another file than `workload` is noted."""
    given = _pairs(arguments)
    notes: list[Diagnostic] = []
    nvlink = _bandwidth(given, "-nv", notes)
    nic = _bandwidth(given, "-nic", notes)
    flags = SimaiFlags(
        gpus=_count(given, "-g", 1, "SimAI crashes without it; give the number of GPUs, as in -g 128"),
        gpus_per_server=_count(given, "-g_p_s", 1, "SimAI divides by it; give GPUs per server, as in -g_p_s 8"),
        nics_per_server=_count(
            given, "-n_p_s", 0, "SimAI reads uninitialised memory without it; give NICs per server, as in -n_p_s 8"
        ),
        gpu_type=_gpu_type(given, nvlink, notes),
        nic_type=_nic_type(given, nic, notes),
        nvlink_gb_per_s=nvlink,
        nic_gb_per_s=nic,
        dp_overlap=_fraction(given, "-dp_o", 0.0),
        tp_overlap=_fraction(given, "-tp_o", 0.0),
        ep_overlap=_fraction(given, "-ep_o", 0.0),
        pp_overlap=_fraction(given, "-pp_o", 1.0),
        pp_overlap_given="-pp_o" in given,
        prefix=given.get("-r"),
        folder=given.get("-r_f"),
        visual=_number(given, "-v", _WHOLE, "a whole number") not in (None, 0),
        language=_language(given),
        workload=given.get("-w"),
    )
    if flags.workload is not None and workload is not None and PurePath(flags.workload) != PurePath(workload):
        notes.append(
            Diagnostic("note", "field-ignored", f"-w {flags.workload} is not read: the workload is {workload}")
        )
    if flags.visual:
        notes.append(
            Diagnostic("note", "field-ignored", "-v: SimAI's chart is not drawn; --perfetto writes our timeline")
        )
    return replace(flags, diagnostics=tuple(notes))


def _pairs(arguments: Sequence[str]) -> dict[str, str]:
    """Flag to value, by short name. The last one counts, but for -g the first, as in SimAI."""
    given: dict[str, str] = {}
    words = iter(arguments)
    for word in words:
        flag = _LONG.get(word, word)
        if flag in ("-busbw", "--bus-bandwidth"):
            raise UsageError(
                "usage",
                "SimAI no longer parses -busbw (since July 2025); it exits with 255",
                hint="give bandwidths as -nv and -nic in GB/s, or types as -g_type and -nic_t",
            )
        if flag not in _SHORT:
            raise UsageError(
                "usage", f'SimAI has no flag "{word}"{did_you_mean(word, _KNOWN)}', hint=f"known: {' '.join(_SHORT)}"
            )
        value = next(words, None)
        if value is None:
            raise UsageError("missing-argument", f"SimAI flag {word} needs a value")
        if flag != "-g" or flag not in given:
            given[flag] = value
    return given


def _number(given: Mapping[str, str], flag: str, written: re.Pattern[str], form: str) -> float | None:
    """The number after a flag, or None where the flag was not given."""
    if flag not in given:
        return None
    text = given[flag].strip()
    try:
        if not written.fullmatch(text):  # SimAI reads 1,024 and 1e3 as 1
            raise NumberError("bad-value", "is not a number")
        return real_number(text, least=-float_info.max, most=float_info.max)
    except NumberError:
        raise UsageError("bad-value", f"SimAI flag {flag} is {quoted(given[flag])}; expected {form}") from None


def _count(given: Mapping[str, str], flag: str, least: int, why: str) -> int:
    number = _number(given, flag, _WHOLE, "a whole number")
    if number is None:
        raise UsageError("missing-argument", f"SimAI flag {flag} is missing", hint=why)
    if not least <= number <= _MAX_COUNT:
        raise UsageError("out-of-range", f"SimAI flag {flag} is {given[flag]}; expected {least} to {_MAX_COUNT:,}")
    return int(number)


def _fraction(given: Mapping[str, str], flag: str, default: float) -> float:
    number = _number(given, flag, _REAL, "a fraction from 0 to 1")
    if number is None:
        return default
    if not 0 <= number <= 1:
        raise UsageError("out-of-range", f"SimAI flag {flag} is {given[flag]}; expected a fraction from 0 to 1")
    return number


def _bandwidth(given: Mapping[str, str], flag: str, notes: list[Diagnostic]) -> float | None:
    """GB/s, or None where SimAI takes its table: not given, or not above 0."""
    number = _number(given, flag, _REAL, "a bandwidth in GB/s")
    if number is not None and number <= 0:
        notes.append(
            Diagnostic("note", "field-ignored", f"{flag} {given[flag]} is not above 0: SimAI takes its table instead")
        )
        return None
    return number


def _gpu_type(given: Mapping[str, str], nvlink: float | None, notes: list[Diagnostic]) -> str | None:
    if "-g_type" not in given:
        if nvlink is None:
            message = "neither -g_type nor -nv: SimAI leaves the GPU type unset, which in fresh memory is A100"
            notes.append(Diagnostic("warning", "assumed", message))
        return None
    return _known_type(given["-g_type"], "-g_type", NVLINK_GB_PER_S, "-nv", nvlink, notes)


def _nic_type(given: Mapping[str, str], nic: float | None, notes: list[Diagnostic]) -> str:
    return _known_type(given.get("-nic_t", "cx7"), "-nic_t", NIC_GB_PER_S, "-nic", nic, notes) or "cx7"


def _known_type(
    text: str, flag: str, known: Mapping[str, float], instead: str, rate: float | None, notes: list[Diagnostic]
) -> str | None:
    """The name as SimAI's table has it; None for a name it does not have where a rate is given instead."""
    for name in known:
        if name.casefold() == text.casefold():
            return name
    if rate is not None:
        notes.append(Diagnostic("note", "field-ignored", f"SimAI does not know {flag} {text}; {instead} decides"))
        return None
    raise UsageError(
        "unknown-name", f'SimAI does not know {flag} "{text}"', hint=f"known: {' '.join(known)}; or give {instead}"
    )


def _language(given: Mapping[str, str]) -> str:
    language = given.get("-l", "en")
    if language not in ("en", "ja"):
        raise UsageError("bad-value", f'SimAI flag -l is "{language}"; expected en or ja')
    return language
