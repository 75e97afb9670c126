"""Divides a model among the parts of a pipeline, and reads and writes the division as Megatron-core does.

A layout names what each part (virtual stage) holds, in the model's order, in one letter each: `E` the embedding, `t` a
decoder layer, `m` a module of multi-token prediction, `L` the loss. `|` divides parts, `t*4` repeats a letter, and
`(tt|)*30` a group (megatron/core/transformer/pipeline_parallel_layer_layout.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby, pairwise
from typing import Final

from foretrace.basics.errors import InputError
from foretrace.models.compose import MAX_LAYERS
from foretrace.workload.plan import Plan

LETTERS: Final = "EtmL"
MAX_SYMBOLS: Final = 2 * MAX_LAYERS
"""Letters and dividers of a layout when all repetitions are written out: no model has as many layers."""
_EXAMPLE: Final = "for example 'Et*4|(t*4|)*14tmL'"
_MIN_RUN: Final = 3
"""Equal letters in a row that are written as a repetition; Megatron's own examples write `tt`."""
_REPEATED: Final = re.compile(r"\*\s*([0-9]+)")


@dataclass(frozen=True, slots=True)
class Layout:
    """The contents of each part of a pipeline: its letters, one text for each part in the model's order."""

    parts: tuple[str, ...]

    @classmethod
    def of(cls, counts: Sequence[int], mtp: int = 0, mtp_part: int = -1) -> Layout:
        """Returns the layout of parts with `counts` layers: the embedding first, the loss last, MTP modules in one."""
        parts = ["t" * count for count in counts]
        parts[mtp_part] += "m" * mtp
        parts[0] = f"E{parts[0]}"
        parts[-1] += "L"
        return cls(tuple(parts))

    def __str__(self) -> str:
        return layout_text(self.parts)

    @property
    def counts(self) -> tuple[int, ...]:
        """Layers of every part."""
        return tuple(part.count("t") for part in self.parts)

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """The layers of every part by number."""
        return tuple(tuple(range(first, last)) for first, last in pairwise(accumulate(self.counts, initial=0)))

    @property
    def mtp_part(self) -> int:
        """The part with the modules of multi-token prediction; the last where there are none."""
        return next((number for number, part in enumerate(self.parts) if "m" in part), len(self.parts) - 1)


@lru_cache(maxsize=256)
def parse_layout(text: str) -> Layout:
    """Reads a layout. Commas and spaces mean nothing.

    As in Megatron-core, groups cannot be nested and a group without a repetition is not known.

    Raises:
        InputError: A character, group or repetition is not understood, with its position from 1 on.
    """
    written, at = "", 0
    while at < len(text):
        if text[at] in ", \t\n":
            at += 1
        elif text[at] == "(":
            group, at = _group(text, at)
            written += group
        else:
            run, at = _run(text, at, len(text))
            written += run
        _check_length(written, at)
    return Layout(tuple(written.split("|")))


def layout_text(parts: Sequence[str]) -> str:
    """Writes parts as a layout, the shortest that `parse_layout` reads as the same."""
    words = []
    for part, equal in groupby(parts[:-1]):
        count = len(list(equal))
        words.append(f"({_runs(part)}|)*{count}" if count > 1 else f"{_runs(part)}|")
    return "".join([*words, _runs(parts[-1])])


def _runs(part: str) -> str:
    runs = [(letter, len(list(equal))) for letter, equal in groupby(part)]
    return "".join(f"{letter}*{count}" if count >= _MIN_RUN else letter * count for letter, count in runs)


def _group(text: str, begin: int) -> tuple[str, int]:
    """Returns what the group that begins at a position stands for, and where it ends."""
    end = text.find(")", begin)
    if end < 0:
        raise _mistake(begin, "( is never closed", "close the group and repeat it: (tt|)*30")
    inside, at = "", begin + 1
    while at < end:
        if text[at] == "(":
            raise _mistake(at, "a group within a group", "Megatron-core does not nest groups: write the inner one out")
        if text[at] in ", \t\n":
            at += 1
            continue
        run, at = _run(text, at, end)
        inside += run
        _check_length(inside, at)
    times, at = _times(text, end + 1)
    if times is None or not inside:
        problem = "an empty group" if not inside else "a group without a repetition"
        raise _mistake(begin, problem, "repeat what is in it, as in (tt|)*30, or leave out the parentheses")
    if times * len(inside) > MAX_SYMBOLS:
        raise _too_long(begin)
    return inside * times, at


def _run(text: str, at: int, end: int) -> tuple[str, int]:
    """Returns what a letter or divider and its repetition stand for, and where they end."""
    letter = text[at]
    if letter not in f"{LETTERS}|":
        meant = next((known for known in LETTERS if known.lower() == letter.lower()), None)
        near = f"; {meant} is meant?" if meant else ""
        hint = f"E embedding, t layer, m multi-token prediction, L loss, | the next part; {_EXAMPLE}"
        raise _mistake(at, f'"{letter}" is not known{near}', hint)
    times, after = _times(text[:end], at + 1)
    if times is None:
        return letter, at + 1
    if times > MAX_SYMBOLS:
        raise _too_long(at)
    return letter * times, after


def _times(text: str, at: int) -> tuple[int | None, int]:
    """Returns the number of a repetition such as `*14` at a position, None where there is none, and where it ends."""
    repeated = _REPEATED.match(text, at)
    if repeated is None:
        if text[at : at + 1] == "*":
            raise _mistake(at, "* without a number", _EXAMPLE)
        return None, at
    if text[repeated.end() :].lstrip(", \t\n").startswith("*"):
        raise _mistake(repeated.end(), "a repetition of a repetition", "write their product")
    digits = repeated[1].lstrip("0") or "0"
    return (int(digits) if len(digits) < len(str(MAX_SYMBOLS)) + 1 else MAX_SYMBOLS + 1), repeated.end()


def _check_length(written: str, at: int) -> None:
    if len(written) > MAX_SYMBOLS:
        raise _too_long(at)


def _too_long(at: int) -> InputError:
    problem = f"layout, character {at + 1}: more than {MAX_SYMBOLS:,} layers and parts cannot be meant"
    return InputError("out-of-range", problem, hint=_EXAMPLE)


def _mistake(at: int, problem: str, hint: str) -> InputError:
    return InputError("bad-value", f"layout, character {at + 1}: {problem}", hint=hint)


def layout_problem(layout: Layout, layers: int, mtp: int, stages: int) -> str | None:
    """Returns in words what Megatron-core refuses about a layout; None where a model runs with it.

    The checks are those of `PipelineParallelLayerLayout.validate_layer_layout`. Embedding and loss are also asked to be
    in the first and the last part, where Megatron-core builds them.
    """
    letters = "".join(layout.parts)
    for letter, name, count in (("E", "embedding", 1), ("L", "loss", 1), ("t", "layer", layers), ("m", "MTP", mtp)):
        if letters.count(letter) != count:
            has = f"layout has {letter} {letters.count(letter)} times"
            return f"{has}; the model has {count} of it ({name})"
    if not layout.parts[0].startswith("E"):
        return "layout does not begin with E in its first part"
    if not layout.parts[-1].endswith("L"):
        return "layout does not end with L in its last part"
    if "t" in letters[letters.index("m") if mtp else len(letters) :]:
        return "layout has a layer (t) after multi-token prediction (m)"
    with_mtp = [number for number, part in enumerate(layout.parts) if "m" in part]
    if len(with_mtp) > 1:
        return f"layout has multi-token prediction (m) in {len(with_mtp)} parts; all of it belongs in one"
    if with_mtp and with_mtp[0] < len(layout.parts) - stages:
        return "layout has multi-token prediction (m) in a part that is not the last of its stage"
    return None


def layout_of(plan: Plan, layers: int, mtp: int, parts: int) -> tuple[Layout, str | None]:
    """Returns what each part of a pipeline holds, and the rule in words where it is not an even division.

    The plan breaks no constraint. Where it says nothing, layers are divided evenly, or else by these rules:

    * With multi-token prediction, parts have as many layers as the fullest needs. MTP and loss take the place of
      layers that are missing in the last part, and then the first parts give up a layer each (the layouts of
      Megatron-Bridge, recipes/deepseek/deepseek_v3.py).
    * If two more layers would divide, embedding and head count as a layer each (Llama 3 405B: 126 layers), as
      under Megatron's account-for-embedding-in-pipeline-split and -loss-.
    * Otherwise the first parts have one layer more.
    """
    if plan.layout is not None:
        return parse_layout(plan.layout), None
    if plan.stage_layers is not None:
        return Layout.of(plan.stage_layers, mtp), None
    if plan.first_stage_layers is not None or plan.last_stage_layers is not None:
        stages = stage_counts(plan, layers)
        assert stages is not None
        return Layout.of([count // (parts // plan.pp) for _ in range(parts // plan.pp) for count in stages], mtp), None
    if plan.account_for is not None:
        return Layout.of(_accounted(layers, parts, plan.account_for), mtp), None
    if layers % parts == 0:
        return Layout.of([layers // parts] * parts, mtp), None
    counts, rule = _default_counts(layers, mtp, parts)
    layout = Layout.of(counts, mtp)
    return layout, f"{layers} layers on {parts} parts: {rule} (--layout '{layout}')"


def _default_counts(layers: int, mtp: int, parts: int) -> tuple[list[int], str]:
    if mtp:
        return mtp_counts(layers, parts), "MTP and loss take the place of layers in the last part"
    each, left = divmod(layers + 2, parts)
    if left == 0 and parts > 1:
        return _accounted(layers, parts, ("embedding", "loss")), f"with embedding and head as layers, each has {each}"
    each, left = divmod(layers, parts)
    rule = f"{each} in each, one more in the first{f' {left}' if left > 1 else ''}"
    return [each + (part < left) for part in range(parts)], rule


def mtp_counts(layers: int, parts: int) -> list[int]:
    """Returns the layers of every part in Megatron-Bridge's layouts of DeepSeek-V3, which has MTP at its end."""
    each = -(-layers // parts)
    last = layers - each * (parts - 1)
    return [*(each - (part < -last) for part in range(parts - 1)), max(last, 0)]


def _accounted(layers: int, parts: int, ends: Sequence[str]) -> list[int]:
    """Divides slots evenly, of which some ends of the model take one each (`get_num_layers_to_build`)."""
    counts = [(layers + len(ends)) // parts] * parts
    counts[0] -= "embedding" in ends
    counts[-1] -= "loss" in ends
    return counts


def stage_counts(plan: Plan, layers: int) -> list[int] | None:
    """Returns the layers of every stage where the first or the last has a number of its own.

    The other stages share the rest evenly; None where they cannot (Megatron-core, `get_num_layers_to_build`).
    """
    first, last = plan.first_stage_layers, plan.last_stage_layers
    ends = [count for count in (first, last) if count is not None]
    middle, rest = plan.pp - len(ends), layers - sum(ends)
    if rest < 0 or middle < 0 or (rest % middle if middle else rest):
        return None
    counts = [rest // middle if middle else 0] * plan.pp
    counts[0] = counts[0] if first is None else first
    counts[-1] = counts[-1] if last is None else last
    return counts
