"""Bus bandwidth over sizes or ranks, as curves to plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from foretrace.basics.units import format_bytes, format_count, format_time
from foretrace.report.plots.curves import Axes, Curve, Dot, curves_svg
from foretrace.simulation.network.network import NetworkAnswer

Over = Literal["size", "ranks", "both"]


def size_text(size_bytes: float) -> str:
    """Returns a size without trailing zeros of a whole number: 256 MiB, 1000 B, 1.50 GiB."""
    text = format_bytes(size_bytes)
    number, _, unit = text.partition(" ")
    return f"{number.rstrip('0').rstrip('.')} {unit}" if "." in number and float(number).is_integer() else text


def _rate_text(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:g}"


_RATE = "bus bandwidth in GB/s"

AXES: dict[Over, Axes] = {
    "size": Axes("size", _RATE, size_text, _rate_text),
    "ranks": Axes("ranks", _RATE, lambda ranks: format_count(round(ranks)), _rate_text),
    "both": Axes("size", _RATE, size_text, _rate_text),
}


def over_of(answers: Sequence[NetworkAnswer]) -> Over:
    """Returns which quantity varies."""
    sizes, ranks = {answer.size_bytes for answer in answers}, {answer.ranks for answer in answers}
    return "both" if len(sizes) > 1 and len(ranks) > 1 else "ranks" if len(ranks) > 1 else "size"


def curves_of(answers: Sequence[NetworkAnswer]) -> list[Curve]:
    """Returns a curve for each number of ranks, or one over ranks, each with its bound at line rates."""
    over = over_of(answers)
    by_ranks: dict[int, list[NetworkAnswer]] = {}
    for answer in answers:
        if answer.busbw_bytes_per_s is not None:
            by_ranks.setdefault(0 if over == "ranks" else answer.ranks, []).append(answer)
    curves = []
    for ranks, answers_of_ranks in by_ranks.items():
        rising = sorted(answers_of_ranks, key=lambda answer: _x(answer, over))
        dots = tuple(
            Dot(
                _x(answer, over),
                answer.busbw_bytes_per_s or 0.0,
                f"{answer.algorithm} {answer.protocol}".strip(),
                _title(answer),
            )
            for answer in rising
        )
        bounds = tuple(
            Dot(_x(answer, over), (answer.busbw_bytes_per_s or 0.0) / answer.bound_share)
            for answer in rising
            if answer.bound_share is not None and answer.bound_share > 0
        )
        curves.append(Curve(f"{format_count(ranks)} ranks" if ranks else "bus bandwidth", dots))
        curves.append(Curve("bound at line rates", bounds, limit=True))
    return [curve for curve in curves if curve.dots]


def _x(answer: NetworkAnswer, over: Over) -> float:
    return float(answer.ranks if over == "ranks" else answer.size_bytes)


def _title(answer: NetworkAnswer) -> str:
    rate = f"{(answer.busbw_bytes_per_s or 0.0) / 1e9:.2f} GB/s"
    return f"{size_text(answer.size_bytes)}, {answer.ranks:,} ranks: {format_time(answer.time_s)}, {rate}"


def network_svg(answers: Sequence[NetworkAnswer]) -> str:
    """Draws the plot as SVG."""
    first, over = answers[0], over_of(answers)
    what = f"{first.collective} of {size_text(first.size_bytes)}" if over == "ranks" else first.collective
    group = "" if over != "size" else f", {format_count(first.ranks)} GPUs on {format_count(first.nodes)} node"
    plural = "s" if group and first.nodes > 1 else ""
    return curves_svg(curves_of(answers), AXES[over], f"{what} on {first.cluster.name}{group}{plural}")
