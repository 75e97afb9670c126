"""Options of a scenario as a command line and a page spell them, and how their texts make a `Scenario`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from foretrace.basics.errors import UsageError, shortened, usage_errors
from foretrace.basics.limits import MAX_GPUS
from foretrace.basics.numbers import NumberError, real_number, whole_field
from foretrace.basics.units import parse_marked_factor
from foretrace.hardware.changes import CHANGES, Change, check_change
from foretrace.inputs.option_texts import OptionText, refuse_several, split_what_ifs
from foretrace.readings.scenario import Scenario

SCENARIO_OPTIONS: Final[dict[str, OptionText]] = {
    "what_if": OptionText(
        "--what-if",
        "WHAT=1.1x",
        "Make ops (compute, tp, …), kernels (gemm, attention) or a resource this many times as fast; or change the "
        "machine: nic=2x, nvlink=, hbm=, pcie=, flops=, memory=, power=500W, gpu=NAME, cluster=NAME. Of a profiler "
        "trace also: cuda-graphs, no-host-gaps, unprofiled, batch=2x.",
        repeated=True,
    ),
    "straggler": OptionText(
        "--straggler", "RANK=1.2x", "Make a rank compute this many times as slowly.", repeated=True
    ),
    "slow_link": OptionText(
        "--slow-link", "RANK:AXIS=2x", "Make what a rank communicates this many times as slow.", repeated=True
    ),
    "jitter": OptionText("--jitter", "3%", "How much computation varies: groups wait longer."),
    "steady": OptionText(
        "--steady/--one-step",
        "",
        "The period of repeated steps, or one step from a standstill; else as the input has it.",
    ),
}
"""The options of a scenario, by name."""


@dataclass(frozen=True, slots=True)
class ScenarioOptions:
    """The scenario, the what-ifs that are options of the input, and the texts that both were read from."""

    scenario: Scenario
    options: dict[str, Any]
    texts: dict[str, Any]

    def changed(self, **texts: Any) -> ScenarioOptions:
        """Reads the same options again with others in their place; what can be repeated is added to what is given."""
        added = {name: [*(self.texts[name] or []), *text] for name, text in texts.items() if isinstance(text, list)}
        return read_scenario({**self.texts, **texts, **added})


def read_scenario(given: Mapping[str, Any]) -> ScenarioOptions:
    """Reads the options of a scenario by name; those that are not given are at their defaults."""
    values = {name: given.get(name) for name in SCENARIO_OPTIONS}
    options, what_ifs = split_what_ifs(values["what_if"] or [])
    scenario = Scenario(
        read_what_ifs(what_ifs),
        read_stragglers(values["straggler"] or []),
        read_slow_links(values["slow_link"] or []),
        read_jitter(values["jitter"]),
        values["steady"],
    )
    return ScenarioOptions(scenario, options, values)


def read_what_ifs(texts: list[str]) -> dict[str, Change]:
    """Reads `compute=1.1x`, `power=500W`, `gpu=h200-sxm` and the like: what, and how many times as fast, how much or
    which."""
    factors: dict[str, Change] = {}
    for text in texts:
        refuse_several(text)
        what, value = _split(text, "--what-if", "compute=1.1x")
        what = "communication" if what == "network" else what
        if what in factors:
            raise UsageError("repeated-option", f"--what-if {shortened(what)} is given twice")
        factors[what] = _change(what, value) if what in CHANGES else read_faster(value, f"--what-if {shortened(text)}")
    return factors


def _change(what: str, value: str) -> str:
    """Returns the text of a change of the machine after checking it."""
    with usage_errors():
        check_change(what, value)
    return value


def read_faster(text: str, where: str) -> float:
    """Reads `1.1x`: how many times as fast. 20% could mean a fifth as fast, or that much faster, and is refused."""
    factor = _factor(text, where)
    if factor < 1 and text.strip().endswith("%"):
        share = f"{100 * factor:g} %"
        hint = f"{share} faster is {1 + factor:g}x; {share} as fast is {factor:g}x"
        raise UsageError("bad-value", f"{where}: {share} of what?", hint=hint)
    return factor


def read_stragglers(texts: list[str]) -> dict[int, float]:
    """Reads `3=1.2x` and the like: a rank, and how many times as slow."""
    factors: dict[int, float] = {}
    for text in texts:
        what, value = _split(text, "--straggler", "3=1.2x")
        rank = _rank(what, "--straggler", "3=1.2x")
        if rank in factors:
            raise UsageError("repeated-option", f"--straggler {rank} is given twice")
        factors[rank] = _slowdown(value, f"--straggler {shortened(text)}")
    return factors


def read_slow_links(texts: list[str]) -> dict[tuple[int, str], float]:
    """Reads `3:dp=2x` and the like: a rank, an axis, and how many times as slow."""
    factors: dict[tuple[int, str], float] = {}
    for text in texts:
        what, value = _split(text, "--slow-link", "3:dp=2x")
        number, colon, axis = what.partition(":")
        if not colon or not axis:
            problem = f"--slow-link {shortened(text)}: expected RANK:AXIS=FACTOR"
            raise UsageError("bad-value", problem, hint="example: --slow-link 3:dp=2x")
        rank = _rank(number, "--slow-link", "3:dp=2x")
        if (rank, axis) in factors:
            raise UsageError("repeated-option", f"--slow-link {shortened(what)} is given twice")
        factors[rank, axis] = _slowdown(value, f"--slow-link {shortened(text)}")
    return factors


def _rank(text: str, option: str, example: str) -> int:
    number = text.removeprefix("rank").strip()
    with usage_errors():
        return whole_field("rank", number, option, most=MAX_GPUS - 1, hint=f"example: {option} {example}")


def read_jitter(text: str | None) -> float:
    """Reads `3%` or `0.03`: a standard deviation as a share of the time."""
    if text is None:
        return 0.0
    number, per_cent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        return real_number(number, most=100 if per_cent else 1) / (100 if per_cent else 1)
    except NumberError:
        problem = f"--jitter {shortened(text)}: expected a share of the time from 0 to 100 %"
        raise UsageError("out-of-range", problem, hint="example: --jitter 3%") from None


def _slowdown(value: str, option: str) -> float:
    factor = _factor(value, option)
    if factor < 1:
        problem = f"{option}: {factor:g} times as slow would be faster"
        raise UsageError("out-of-range", problem, hint="20 % slower is 1.2x")
    return factor


def _factor(text: str, where: str) -> float:
    with usage_errors():
        return parse_marked_factor(text, where=where)


def _split(text: str, option: str, example: str) -> tuple[str, str]:
    what, equals, value = text.partition("=")
    if not equals or not what.strip():
        raise UsageError(
            "bad-value", f"{option} {shortened(text)}: expected NAME=FACTOR", hint=f"example: {option} {example}"
        )
    return what.strip(), value.strip()
