"""Arguments that several commands share, and how their text is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.errors import InputError, UsageError, did_you_mean
from foretrace.units import parse_factor

if TYPE_CHECKING:
    from foretrace.cost.network import NcclSettings
    from foretrace.lower.choices import HostMode

MOST_NAMED = 10_000


def read_nccl(algorithms: str | None, protocols: str | None, files: list[Path] | None) -> NcclSettings | None:
    """What is said about NCCL; None where nothing is."""
    if algorithms is None and protocols is None and not files:
        return None
    from foretrace.cost.network.nccl.settings import NcclSettings

    return NcclSettings(algorithms, protocols, tuple(files or ()))


def read_what_ifs(texts: list[str]) -> dict[str, float]:
    """`compute=1.1x` and the like: what, and how many times as fast."""
    found: dict[str, float] = {}
    for text in texts:
        _refuse_several(text)
        what, value = _split(text, "--what-if", "compute=1.1x")
        if what in found:
            raise UsageError(f"--what-if {what} is given twice")
        found[what] = read_faster(value, f"--what-if {text}")
    return found


def read_faster(text: str, where: str) -> float:
    """`1.1x`: how many times as fast. 20% could mean a fifth as fast, or that much faster, and is refused."""
    factor = _factor(text, where)
    if factor < 1 and text.strip().endswith("%"):
        share = f"{100 * factor:g} %"
        raise UsageError(
            f"{where}: {share} of what?",
            hint=f"{share} faster is {1 + factor:g}x; {share} as fast is {factor:g}x",
        )
    return factor


def _factor(text: str, where: str) -> float:
    """A factor of the command line."""
    try:
        return parse_factor(text, where=where)
    except InputError as error:
        raise UsageError(error.message, where=error.where, hint=error.hint) from None


def _refuse_several(text: str) -> None:
    """Raises an error where one option holds what needs two."""
    first, comma, rest = text.partition(",")
    if comma and ("=" in first or first.strip() in _HOSTS) and rest.strip()[:1].isalpha():
        raise UsageError(
            f"--what-if {text}: one at a time", hint=f"repeat it: --what-if {first.strip()} --what-if {rest.strip()}"
        )


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What-ifs that build a profiler's trace anew, by the names of `Choices`."""

    host: HostMode = "profiled"
    batch: float = 1.0
    gpu: str | None = None


def read_rebuilds(texts: list[str]) -> tuple[Rebuilt, list[str]]:
    """`cuda-graphs`, `no-host-gaps`, `unprofiled`, `batch=2x` and `gpu=h100-sxm`; and what else there is."""
    chosen, rest, seen = Rebuilt(), [], set()
    for text in texts:
        _refuse_several(text)
        what, equals, value = (part.strip() for part in text.partition("="))
        if not equals and what not in (*_HOSTS, "batch", "gpu"):
            known = (*_HOSTS, "batch=2x", "gpu=h100-sxm")
            raise UsageError(
                f"--what-if {text} is not known{did_you_mean(what, known)}",
                hint=f"expected NAME=FACTOR such as compute=1.1x, or of a profiler's trace {_REBUILD_WORDS}",
            )
        kind = "the host" if what in _HOSTS else what
        if kind not in ("the host", "batch", "gpu"):
            rest.append(text)
            continue
        if kind in seen:
            raise UsageError(
                f"--what-if {text}: {'the host runs one way' if what in _HOSTS else f'{kind} is given twice'}"
            )
        seen.add(kind)
        if bool(value) == (what in _HOSTS):
            raise UsageError(f"--what-if {text}: expected {_REBUILD_WORDS}")
        if what in _HOSTS:
            chosen = replace(chosen, host=_HOSTS[what])
        elif kind == "batch":
            chosen = replace(chosen, batch=_factor(value, f"--what-if {text}"))
        else:
            check_gpu(value, f"--what-if {text}")
            chosen = replace(chosen, gpu=value)
    return chosen, rest


def check_gpu(name: str, where: str) -> None:
    """Raises an error where no GPU is called so."""
    from foretrace.hardware.presets import gpu  # few name one

    try:
        gpu(name)
    except InputError as error:
        raise UsageError(error.message, where=where, hint=error.hint) from None


_REBUILD_WORDS = "cuda-graphs, no-host-gaps, unprofiled, batch=2x or gpu=h100-sxm"
_HOSTS: dict[str, HostMode] = {"cuda-graphs": "graphs", "no-host-gaps": "none", "unprofiled": "unprofiled"}


def read_sizes(texts: list[str]) -> tuple[tuple[str, str], ...]:
    """`moe.tokens=8192` and the like: names and values of what a profile does not hold."""
    found: dict[str, str] = {}
    for text in texts:
        what, value = _split(text, "--set", "moe.tokens=8192", "VALUE")
        if what in found:
            raise UsageError(f"--set {what} is given twice")
        found[what] = value
    return tuple(found.items())


def read_steps(text: str | None) -> tuple[int, ...] | None:
    """`1,2,5-7`: recorded steps, by their position from 0."""
    return None if text is None else tuple(_whole_numbers(text, "--steps", "step", "1,2,5-7"))


def read_stragglers(texts: list[str]) -> dict[int, float]:
    """`3=1.2x` and the like: a rank, and how many times as slow."""
    found: dict[int, float] = {}
    for text in texts:
        what, value = _split(text, "--straggler", "3=1.2x")
        what = what.removeprefix("rank").strip()
        if not what.isdecimal():
            raise UsageError(f'--straggler {text}: "{what}" is no rank', hint="example: --straggler 3=1.2x")
        if int(what) in found:
            raise UsageError(f"--straggler {what} is given twice")
        found[int(what)] = _slowdown(value, f"--straggler {text}")
    return found


def read_slow_links(texts: list[str]) -> dict[tuple[int, str], float]:
    """`3:dp=2x` and the like: a rank, an axis, and how many times as slow."""
    found: dict[tuple[int, str], float] = {}
    for text in texts:
        what, value = _split(text, "--slow-link", "3:dp=2x")
        rank, colon, axis = what.removeprefix("rank").strip().partition(":")
        if not rank.isdecimal() or not colon or not axis:
            raise UsageError(f"--slow-link {text}: expected RANK:AXIS=FACTOR", hint="example: --slow-link 3:dp=2x")
        if (int(rank), axis) in found:
            raise UsageError(f"--slow-link {what} is given twice")
        found[int(rank), axis] = _slowdown(value, f"--slow-link {text}")
    return found


def read_ranks(text: str | None, **shown_by: Path | None) -> list[int] | None:
    """`0,7,16-19`: single ranks and ranges, which one of the files by these options must show."""
    if text is None:
        return None
    ranks = _whole_numbers(text, "--ranks", "rank", "0,7,16-19")
    if all(path is None for path in shown_by.values()):
        flags, verb = " and ".join(f"--{name}" for name in shown_by), "show" if len(shown_by) > 1 else "shows"
        raise UsageError(f"--ranks chooses what {flags} {verb}", hint="add --perfetto out.pftrace")
    return ranks


def needed_cluster(name: str | None) -> str:
    """The cluster that is named; an error where none is."""
    if name is None:
        raise UsageError("on what cluster?", hint="for example --cluster h100-dgx; see foretrace list clusters")
    return name


def check_svg(*paths: Path | None) -> None:
    """Refuses to write a picture under a name that says it is something else than SVG."""
    for path in paths:
        if path is not None and path.suffix.lower() != ".svg":
            raise UsageError(f"{path}: pictures are written as SVG", hint=f"for example {path}.svg")


def check_outputs(source: Path | None, outputs: list[Path | None]) -> None:
    """Refuses to write over what is read, or twice to one file."""
    seen = set() if source is None else {source.resolve()}
    for path in outputs:
        if path is not None and path.resolve() in seen:
            raise UsageError(f"{path} would be written over", hint="give every output a name of its own")
        if path is not None:
            seen.add(path.resolve())


def _slowdown(value: str, option: str) -> float:
    factor = _factor(value, option)
    if factor < 1:
        raise UsageError(f"{option}: {factor:g} times as slow would be faster", hint="20 % slower is 1.2x")
    return factor


def _whole_numbers(text: str, option: str, what: str, example: str) -> list[int]:
    """Single numbers and ranges."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise UsageError(f'{option} {text}: "{part}" is no {what} or range', hint=f"example: {option} {example}")
        if int(last or first) - int(first) >= MOST_NAMED:
            raise UsageError(f"{option} {text}: more than {MOST_NAMED:,} {what}s are more than a trace can show")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def _split(text: str, option: str, example: str, value_is: str = "FACTOR") -> tuple[str, str]:
    what, equals, value = text.partition("=")
    if not equals or not what.strip():
        raise UsageError(f"{option} {text}: expected NAME={value_is}", hint=f"example: {option} {example}")
    return what.strip(), value.strip()


def read_jitter(text: str | None) -> float:
    """`3%` or `0.03`: a standard deviation as a share of the time."""
    if text is None:
        return 0.0
    number, per_cent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        value = float(number) / (100 if per_cent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise UsageError(f"--jitter {text}: expected a share of the time from 0 to 100 %", hint="example: --jitter 3%")
    return value
