"""Changes a recorded step to another batch, or to another GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from foretrace.basics.arrays import Floats, Longs, Mask
from foretrace.basics.errors import Diagnostic, InputError
from foretrace.inputs.torch_ops.kinds import WorkKind, kind_of_kernel, kind_of_op, kinds_of_text
from foretrace.inputs.torch_ops.recorded_gpu import recorded_gpu as recorded_on
from foretrace.program.columns import Collective, Kind, Phase
from foretrace.program.kernels import DTYPE_BYTES, Gemm, parse_kernels
from foretrace.program.program import Program, Source, Templates
from foretrace.simulation.rescale import Rescaled, Rescaling

if TYPE_CHECKING:
    from foretrace.hardware.cluster import Gpu

BATCH_SPREAD: Final = 0.04
"""How far all kernels of a step together may be off for every doubling of the batch, as a logarithm: 0.5 % for one, 6
to 7.5 % for two in steps of an H200 (docs/profiler-whatif.md)."""

GPU_SPREAD: Final = 0.12
"""The same for another GPU: a judgement, from what prices of kernels are off by."""

UNKNOWN_SPREAD: Final = 0.25
"""The same where only the kind of a kernel is known: a judgement."""

WORTH_SAYING: Final = 0.995
"""The share of computing time with known kernels above which the rest is not spoken of."""

_OF_TOKENS: Final = (Collective.ALL_TO_ALL, Collective.TRANSFER, Collective.EXCHANGE)
"""Collectives that carry activations whatever their group: to experts, and between stages."""

_TOKEN_AXES: Final = frozenset({"tp", "cp", "ep", "etp", "pp"})


def rebuilt(
    program: Program, *, batch: float = 1.0, gpu: str | None = None, recorded_gpu: str | None = None
) -> Program:
    """A recorded program with `batch` times the samples in a step, as `gpu` would run it.

    Every kernel keeps its recorded time, multiplied by the ratio of its prices: in the new shape on the new GPU to the
    recorded shape on the recorded one. `recorded_gpu` is that one's name, where the program does not say it.
    Parameters' work and the reduction of gradients have no samples in them and stay; the host is taken to be the same.
    """
    if batch == 1 and gpu is None:
        return program
    if not 0 < batch < math.inf:
        raise InputError(
            "out-of-range", f"a batch cannot be {batch:g} times as large", hint="expected a factor such as 2"
        )
    name = recorded_gpu or recorded_on(program)
    before, after = _gpus(name, gpu)
    gpu = None if after is None else after.name
    scaling = Rescaling(before, after, batch)
    rows = _Rows(program, batch, scaling)
    sources, numbers = _with_sources(program, rows, batch, gpu)
    strings, texts = _with_texts(program, rows.compute)
    columns = dict(program.templates.columns)
    columns |= _scaled_columns(program.templates, rows, batch)
    for row, number in texts.items():
        columns["kernel"][row] = number
    for row, number in numbers.items():
        columns["source"][row] = number
    return replace(
        program,
        strings=strings,
        sources=sources,
        templates=replace(
            program.templates,
            columns=columns,
            send_bytes=_sends(program.templates, rows.tokens, batch),
            draw_amount=_drawn(program.templates, columns["duration_s"]),
        ),
        instances=replace(program.instances, override_value=_overrides(program, rows, batch)),
        tokens_per_step=None if program.tokens_per_step is None else program.tokens_per_step * batch,
        diagnostics=(*program.diagnostics, *_notes(rows, batch, gpu, before, _is_priced_anew(program))),
    )


def _gpus(recorded: str | None, target: str | None) -> tuple[Gpu | None, Gpu | None]:
    from foretrace.hardware.presets import gpu as preset

    after = None if target is None else preset(target)
    try:
        before = preset(recorded) if recorded else None
    except InputError:
        before = None
    if after is not None and before is None:
        so, hint = f"its kernels cannot be compared with those of {after.name}", "see foretrace list gpus"
        if recorded:
            problem = f'the trace was recorded on "{recorded}", which is not known'
            raise InputError("unknown-name", f"{problem}: {so}", hint=hint)
        raise InputError("missing-field", f"the trace does not say on what GPU it ran: {so}", hint=hint)
    return before, after


class _Rows:
    """The ops that change, by their row among the templates: how each computation does, and which communications carry
    samples."""

    def __init__(self, program: Program, batch: float, scaling: Rescaling) -> None:
        self._program = program
        columns = program.templates.columns
        kind, phase = columns["kind"], columns["phase"]
        computes = np.flatnonzero(kind == Kind.COMPUTE)
        kernel, name = columns["kernel"].astype(np.int64), columns["name"].astype(np.int64)
        texts = program.strings
        scaling.prepare(texts[number] for number in set(kernel[computes].tolist()) if number >= 0)
        known: dict[tuple[int, int, bool], Rescaled] = {}
        self.compute: dict[int, Rescaled] = {}
        for row in computes.tolist():
            key = (int(kernel[row]), -1 if kernel[row] >= 0 else int(name[row]), phase[row] != Phase.OPTIMIZER)
            if key not in known:
                known[key] = self._rescaled(scaling, *key)
            self.compute[row] = known[key]
        communicates = np.isin(kind, (Kind.COLLECTIVE, Kind.TRANSFER))
        self.tokens: Mask = communicates & _of_tokens(program) if batch != 1 else np.zeros(len(kind), dtype=bool)

    def _rescaled(self, scaling: Rescaling, text: int, name: int, samples: bool) -> Rescaled:
        strings = self._program.strings
        if text >= 0:
            kinds = kinds_of_text(strings[text])
            return scaling.of_text(strings[text], samples and kinds != {WorkKind.OPTIMIZER})
        kind = kind_of_kernel(strings[name])
        kind = kind_of_op(strings[name]) if kind is WorkKind.OTHER else kind
        return scaling.of_kind(kind, samples and kind is not WorkKind.OPTIMIZER)

    def known_share(self) -> float:
        """The share of recorded computing time whose kernels are known."""
        duration = np.nan_to_num(self._program.templates.columns["duration_s"].astype(np.float64))
        total = sum(float(duration[row]) for row in self.compute)
        return (
            sum(float(duration[row]) for row, rescaled in self.compute.items() if rescaled.text) / total
            if total > 0
            else 1.0
        )


def _of_tokens(program: Program) -> Mask:
    """Returns which communications outside the optimizer carry samples.

    They are all-to-alls, transfers and exchanges, those over an axis of `_TOKEN_AXES`, and those of as many bytes as a
    product of the step reads or writes for its tokens.
    """
    columns = program.templates.columns
    axes = np.array([communicator.axis in _TOKEN_AXES for communicator in program.communicators] + [False])
    of_axis = axes[columns["communicator"].astype(np.int64)]
    sizes = np.isin(columns["bytes"], list(_activation_bytes(program)))
    chosen = np.isin(columns["collective"], _OF_TOKENS) | of_axis | sizes
    return np.asarray(chosen & (columns["phase"] != Phase.OPTIMIZER))


def _activation_bytes(program: Program) -> set[int]:
    """Bytes of what products of the step read and write for their tokens."""
    sizes: set[int] = set()
    for number in set(program.templates.columns["kernel"].tolist()) - {-1}:
        for _, kernel in parse_kernels(program.strings[number]):
            if isinstance(kernel, Gemm) and kernel.batch == 1:
                tokens, rest = (
                    (kernel.k, (kernel.m, kernel.n)) if kernel.layout == "nt" else (kernel.m, (kernel.n, kernel.k))
                )
                sizes.update(int(tokens * width * DTYPE_BYTES[kernel.out]) for width in rest)
    return sizes


def _scaled_columns(templates: Templates, rows: _Rows, batch: float) -> dict[str, NDArray[np.generic]]:
    """Columns with the new durations, work and bytes; those not named stay."""
    names = ("duration_s", "flops", "moved_bytes", "bytes", "kernel", "source")
    new = {name: templates.columns[name].copy() for name in names}
    duration, flops, moved = (new[name].astype(np.float64) for name in names[:3])
    for row, rescaled in rows.compute.items():
        duration[row] = rescaled.seconds(float(duration[row]))
        if rescaled.text and flops[row] + moved[row] > 0:
            work = parse_kernels(rescaled.text)
            flops[row] = sum(count * kernel.flops for count, kernel in work)
            moved[row] = sum(count * kernel.moved_bytes for count, kernel in work)
    duration[rows.tokens] *= batch
    size = new["bytes"].astype(np.float64)
    size[rows.tokens] = np.rint(size[rows.tokens] * batch)
    return new | {"duration_s": duration, "flops": flops, "moved_bytes": moved, "bytes": size.astype(np.int64)}


def _sends(templates: Templates, tokens: Mask, batch: float) -> Longs:
    """Bytes to each member, where the op carries samples."""
    times = np.where(tokens[templates.send_op], batch, 1.0)
    return np.asarray(np.rint(templates.send_bytes * times).astype(np.int64))


def _drawn(templates: Templates, duration_s: NDArray[np.generic]) -> Floats:
    """Returns what ops draw on resources, scaled as their time beyond the latency is."""
    latency = templates.columns["latency_s"][templates.draw_op].astype(np.float64)
    before = templates.columns["duration_s"][templates.draw_op].astype(np.float64) - latency
    after = np.maximum(duration_s[templates.draw_op].astype(np.float64) - latency, 0.0)
    ratio = np.divide(after, before, out=np.ones_like(before), where=before > 0)
    return np.asarray(templates.draw_amount * ratio)


def _overrides(program: Program, rows: _Rows, batch: float) -> Floats:
    """Values that instances give single ops, durations and bytes among them."""
    instances, templates = program.instances, program.templates
    value = instances.override_value.copy()
    row = templates.start[instances.block[instances.override_instance]] + instances.override_op
    change: dict[str, Callable[[int, float], float]] = {
        "duration_s": lambda at, was: (
            rows.compute[at].seconds(was) if at in rows.compute else was * (batch if rows.tokens[at] else 1.0)
        ),
        "bytes": lambda at, was: float(round(was * batch)) if rows.tokens[at] else was,
    }
    for i, column in enumerate(instances.override_column):
        if column in change:
            value[i] = change[column](int(row[i]), float(value[i]))
    return value


def _with_texts(program: Program, compute: dict[int, Rescaled]) -> tuple[tuple[str, ...], dict[int, int]]:
    """The program's strings with the new kernels' texts, and each row's number among them."""
    numbers = {text: number for number, text in enumerate(program.strings)}
    text_of = {
        row: numbers.setdefault(rescaled.text, len(numbers)) for row, rescaled in compute.items() if rescaled.text
    }
    return tuple(numbers), text_of


def _with_sources(
    program: Program, rows: _Rows, batch: float, gpu: str | None
) -> tuple[tuple[Source, ...], dict[int, int]]:
    """The program's sources with those of the rows that changed, and each of these rows' number."""
    was = program.templates.columns["source"].astype(np.int64)
    sources = {source: number for number, source in enumerate(program.sources)}
    words = " on ".join([f"a batch {batch:g}×"] * (batch != 1) + [gpu or ""] * (gpu is not None))
    known = math.hypot(BATCH_SPREAD * math.log2(batch), GPU_SPREAD * (gpu is not None))
    mostly = rows.known_share() > WORTH_SAYING
    source_of: dict[int, int] = {}
    for row, rescaled in rows.compute.items():
        if rescaled.ratio == 1.0:
            continue
        told = bool(rescaled.text) or mostly
        spread = known if told else UNKNOWN_SPREAD
        old = program.sources[was[row]]
        low, high = math.exp(-spread), math.exp(spread)
        by = "by kernel" if told else "by kind of kernel"
        new = Source(f"{old.name}, scaled {by} to {words}", old.low * low, old.high * high)
        source_of[row] = sources.setdefault(new, len(sources))
    return tuple(sources), source_of


def _is_priced_anew(program: Program) -> bool:
    """Whether a cluster prices its communication."""
    columns = program.templates.columns
    communicates = np.isin(columns["kind"], (Kind.COLLECTIVE, Kind.TRANSFER))
    return bool(np.isnan(columns["duration_s"][communicates].astype(np.float64)).any())


def _notes(rows: _Rows, batch: float, gpu: str | None, recorded: Gpu | None, priced: bool) -> tuple[Diagnostic, ...]:
    """Returns notes on what was assumed."""
    known = rows.known_share()
    notes = []
    if batch != 1:
        by = f"prices of kernels on {recorded.name}" if recorded else "the kernels' work, since the GPU is not known"
        text = (
            f"a batch {batch:g}× as large: recorded times × the ratio of {by}; the optimizer, the reduction of "
            "gradients and the host's time stay as recorded"
        )
        notes.append(Diagnostic("note", "repriced", text))
        carried = int(rows.tokens.sum())
        if carried:
            text = f"{carried:,} communications carry samples: their bytes and times are taken {batch:g}×"
            notes.append(Diagnostic("note", "repriced", text))
    if gpu is not None and recorded is not None:
        text = (
            f"on {gpu}: recorded times × the ratio of prices of kernels to those on {recorded.name}; the host "
            f"{'stays' if priced else 'and the network stay'} as recorded"
        )
        notes.append(Diagnostic("note", "repriced", text))
    if known <= WORTH_SAYING:
        linear = "taken in proportion to samples" if batch != 1 else "taken by their kind"
        text = f"{100 * (1 - known):.0f} % of the computing time has no known shapes and is {linear}"
        notes.append(Diagnostic("note", "assumed", text))
    return tuple(notes)
