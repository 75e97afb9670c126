"""The values of options that several kinds of input share: their types, their limits and their checks.

Values come from Python as well as from a command line. `option_texts` reads the texts of a command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from typing import Any, Literal

from foretrace.basics.errors import InputError, did_you_mean, shown_value
from foretrace.basics.mesh import Mesh
from foretrace.basics.numbers import NumberError, number_error, real_number, whole_number


class Overlap(StrEnum):
    """Communication that runs concurrently with computation."""

    GRAD = "grad"
    """Gradients are reduced layer by layer under the last backward."""
    PARAM = "param"
    """Parameters are gathered layer by layer under the first forward of the next step."""
    PP = "pp"
    """Transfers between stages hold up only what needs them; without, a stage waits for its transfers."""
    TP = "tp"
    """Tensor-parallel collectives run concurrently with the computation of their row, as fused kernels aim at."""


def parse_overlap(text: str, where: str | None = None) -> frozenset[Overlap]:
    """Reads `grad,param`, `dp` for these two, `all` or `none`."""
    return frozenset(map(Overlap, overlap_words(text, tuple(Overlap), tuple(Overlap), where)))


def overlap_words(text: str, known: Sequence[str], every: Sequence[str], where: str | None = None) -> set[str]:
    """Reads words of overlap.

    Args:
        text: Words divided by commas; `dp` is `grad,param`, `none` nothing.
        known: The words that an input has.
        every: Those that `all` stands for.
        where: The option, for errors.
    """
    groups: dict[str, Sequence[str]] = {"none": (), "dp": ("grad", "param"), "all": every}
    words: set[str] = set()
    for word in text.replace(",", " ").lower().split():
        if word not in groups and word not in known:
            raise InputError(
                "unknown-name",
                f'overlap "{word}" is not known{did_you_mean(word, [*known, *groups])}',
                where=where,
                hint=f"known: {', '.join(known)}; dp = grad,param; all = {','.join(every)}; none",
            )
        words.update(groups.get(word, (word,)))
    return words


MAX_COUNT, MAX_BYTES, MAX_BATCH, MAX_LAYERS = 10**12, 10**15, 1e4, 10**5

HostMode = Literal["profiled", "unprofiled", "none", "graphs"]
"""How the host of a profiled step runs: as recorded, without what the profiler cost it, with no time between launches,
or launching the whole step as one CUDA graph."""


def check_whole(name: str, value: object, least: int, most: int = MAX_COUNT) -> None:
    """Raises an error unless a value is None or a whole number between `least` and `most`."""
    if value is None:
        return
    try:
        if not isinstance(value, int):
            raise NumberError("bad-value", "is not a whole number")
        whole_number(value, least=least, most=most)
    except NumberError as error:
        raise number_error(error, name, value, None, f"expected a whole number from {least} to {most:,}") from None


def check_layers(value: object) -> tuple[int, ...] | None:
    """Returns the layers of every chunk as a tuple; raises an error unless each has one at least."""
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value:
        hint = "expected whole numbers, one for each chunk"
        raise InputError("bad-value", f"stage_layers is {shown_value(value)}", hint=hint)
    for count in value:
        check_whole("stage_layers", count, 1, MAX_LAYERS)
    return tuple(value)


def check_parts(layers: tuple[int, ...], pieces: int, where: str | None = None) -> None:
    """Raises an error unless `stage_layers` has a number for each piece of the model."""
    if len(layers) != pieces:
        raise InputError(
            "bad-plan",
            f"stage_layers has {len(layers)} parts, the pipeline {pieces}",
            where=where,
            hint=f"give {pieces} numbers, one for each chunk in the order of the model",
        )


def read_overlap(value: object) -> frozenset[Overlap]:
    """Returns what overlaps, given as text or as words."""
    if not isinstance(value, str | list | tuple | set | frozenset):
        raise InputError("bad-value", f"overlap is {shown_value(value)}", hint='expected words such as "grad,param"')
    words = value if isinstance(value, str) else ",".join(map(str, value))
    return parse_overlap(words, where="overlap")


def check_mesh(name: str, value: object) -> None:
    """Raises an error unless a value is None, a mesh or text."""
    if not isinstance(value, Mesh | str | None):
        raise InputError("bad-value", f"{name} is {shown_value(value)}", hint="expected a Mesh, or text such as pp=8")


def check_schedule(value: object) -> None:
    """Raises an error unless a value is None or text."""
    if not isinstance(value, str | None):
        raise InputError("bad-value", f"schedule is {shown_value(value)}", hint='expected a name such as "zb-h1"')


def check_word(name: str, value: object, known: Sequence[str]) -> None:
    """Raises an error unless a value is one of the known words."""
    if not isinstance(value, str) or value not in known:
        near = did_you_mean(value, known) if isinstance(value, str) else ""
        problem = f"{name} is {shown_value(value)}{near}"
        raise InputError("unknown-name", problem, hint=f"known: {', '.join(known)}")


def check_factor(name: str, value: object, least: float, most: float, hint: str) -> None:
    """Raises an error unless a value is a number between `least` and `most`."""
    try:
        if isinstance(value, str | bytes):
            raise NumberError("bad-value", "is not a number")
        real_number(value, least=least, most=most)
    except NumberError as error:
        raise number_error(error, name, value, None, hint) from None


def read_pairs(name: str, value: object) -> tuple[tuple[str, str], ...]:
    """Returns names and values, given as a mapping or as pairs, as pairs of texts."""
    pairs = value.items() if isinstance(value, Mapping) else value
    try:
        return tuple((str(key), str(text)) for key, text in pairs)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        hint = 'expected names and values such as {"moe.tokens": 8192}'
        raise InputError("bad-value", f"{name} is {shown_value(value)}", hint=hint) from None


def changed_options(options: Any) -> set[str]:
    """Returns the names of the options that are not at their defaults."""
    return {field.name for field in fields(options) if getattr(options, field.name) != field.default}
