"""Reads measured training runs: a table with a row per run (CSV), or a line of JSON per run.

What was run and what was measured are separate from the start: a prediction is given a `RunConfig` and never sees a
`RunMeasurement`. A row that cannot be used is reported with its line and the reason; the others are read.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from foretrace.basics.errors import InputError, did_you_mean, listed, shown
from foretrace.basics.files import read_whole
from foretrace.basics.limits import check_limit
from foretrace.basics.numbers import NumberError, real_number, whole_number
from foretrace.basics.records import read_json
from foretrace.models.compose import MAX_LAYERS
from foretrace.workload.plan import OPEN_WORDS, GradDtype, MasterDtype, MomentDtype

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS: Final = (
    "a CSV needs id, model, gpu, gpus, mbs and step_time_s; layers, hidden, ffn_hidden and heads where the model is no "
    "preset; may have gbs, seq_len, tp, pp, complete, …"
)
"""Columns that a table must have. docs/accuracy.md lists all columns."""
_NEEDED: Final = ("id", "model", "gpu", "gpus")
_MEASURED: Final = ("step_time_s", "step_time_derived_s")
_GRADE: Final = "complete"
_READ: Final = (
    *_NEEDED,
    *_MEASURED,
    *(
        _GRADE,
        "family",
        "layers",
        "hidden",
        "ffn_hidden",
        "heads",
        "kv_heads",
        "head_dim",
        "vocab",
        "seq_len",
        "mbs",
        "gbs",
    ),
    *("experts", "topk", "gpus_per_node", "interconnect", "dtype", "tp", "pp", "vpp", "cp", "ep", "sp", "zero_fsdp"),
    *("recompute", "overlap", "notes", "memory_gb", "memory_kind"),
)
_ABOUT: Final = (
    *("source", "params_b", "dp", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "hfu"),
    *("other_sim", "other_sim_err_pct"),
)
"""Columns for a reader: nothing is predicted from or compared with them."""
UNGRADED: Final = "A"
"""The grade of rows in a table that grades none: a user's own runs, of which all that matters is known."""
_SEPARATORS: Final = {"semicolons": ";", "tabs": "\t", "bars": "|"}
MAX_BYTES: Final = 16 << 20
"""Bytes of a table: one of 300 runs has 100 kB."""
MAX_LINES: Final = 100_000
_MAX_COLUMNS: Final = 1000
_MAX_NAME, _MAX_TEXT = 200, 4000
"""Characters of names (of runs, models, GPUs), and of other cells."""
_NAMES: Final = ("id", "model", "gpu", "family", "complete")
_MIN_VALUE, _MAX_VALUE = 1e-9, 1e12
"""Between these, in whatever unit, lies everything that was ever measured of a step."""
GIB: Final = 1 << 30

MemoryKind = Literal["allocated", "reserved", "used"]
"""Says what a figure of memory counts: tensors (`max_memory_allocated`), what the caching allocator reserves for them
(`max_memory_reserved`), or all that the process holds on the GPU (nvidia-smi)."""
MEMORY_KINDS: Final[tuple[MemoryKind, ...]] = ("allocated", "reserved", "used")
_FAMILY_MEMORY: Final[dict[str, MemoryKind]] = {"torchtitan": "reserved"}
"""Says what the memory of a family counts, where that is not what is allocated. torchtitan prints
`reserved_bytes.all.peak` (torchtitan/components/metrics.py, DeviceMemoryMonitor); SimuMax's runs give Megatron's
`max allocated`."""

_JSON_CONFIG: Final = (
    *("name", "family", "grade", "gpu", "layers", "hidden", "ffn", "heads", "kv", "head_dim", "vocab", "seq", "mbs"),
    *("style", "compile", "tp", "dtype", "param_dtype", "grad_dtype", "master_dtype", "moment_dtype", "recompute"),
    *("recompute_modules", "offload_layers", "experts", "topk", "expert_ffn", "shared_ffn"),
    *("q_lora_rank", "kv_lora_rank", "nope_dim", "rope_dim", "v_dim"),
)
_JSON_MEASURED: Final = ("step_ms", "fwd_ms", "bwd_ms", "opt_ms", "peak_gb", "reserved_gb", "used_gb")
_JSON_ABOUT: Final = ("ok", "error", "params", "step_s", "requested_gb", "context_gb", "outside_gb")
"""Fields that our scripts write for a reader, which nothing is predicted from or compared with. `step_s` includes the
first steps."""


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The configuration of a run as its source writes it; None or an empty text where it says nothing.

    `style` (gpt, llama) and `compiled` are known of runs measured on one GPU. In these, the sizes are the share of one
    of `share` tensor-parallel ranks, without communication.
    """

    id: str
    where: str
    """`file:line`."""
    family: str
    grade: str
    model: str
    layers: int | None
    hidden: int | None
    ffn: int | None
    heads: int | None
    kv_heads: int | None
    vocab: int | None
    seq_len: int | None
    gpu: str
    gpus: int
    mbs: int | None
    gbs: int | None
    head_dim: int | None = None
    experts: int | None = None
    topk: int | None = None
    gpus_per_node: int | None = None
    interconnect: str = ""
    dtype: str = ""
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool | None = None
    sharding: str = ""
    recompute: str = ""
    overlap: str = ""
    notes: str = ""
    style: str = ""
    compiled: bool | None = None
    share: int = 1
    expert_ffn: int | None = None
    shared_ffn: int | None = None
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    nope_dim: int | None = None
    rope_dim: int | None = None
    v_dim: int | None = None
    offload_layers: int = 0
    grad_dtype: GradDtype | None = None
    master_dtype: MasterDtype | None = None
    moment_dtype: MomentDtype | None = None


@dataclass(frozen=True, slots=True)
class RunMeasurement:
    """The measurement of a run in seconds and bytes: what the source has of the step, its parts and peak memory.

    There is a step time or a peak. `peak_bytes` counts what `memory_kind` says; `reserved_bytes` and `used_bytes` are
    known where a source measured several kinds.
    """

    step_s: float | None
    derived: bool = False
    """Whether the step time follows from a rate the source reports."""
    forward_s: float | None = None
    backward_s: float | None = None
    optimizer_s: float | None = None
    peak_bytes: float | None = None
    memory_kind: MemoryKind = "allocated"
    reserved_bytes: float | None = None
    used_bytes: float | None = None

    @property
    def memory_bytes(self) -> dict[MemoryKind, float]:
        """The peaks that were measured, by what they count."""
        peaks: dict[MemoryKind, float | None] = {"reserved": self.reserved_bytes, "used": self.used_bytes}
        peaks |= {self.memory_kind: self.peak_bytes}
        return {kind: peak for kind in MEMORY_KINDS if (peak := peaks.get(kind)) is not None}


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """A run: its configuration and its measurement, to be kept apart."""

    config: RunConfig
    measurement: RunMeasurement


@dataclass(frozen=True, slots=True)
class SkippedRun:
    """A row that cannot be used, and why."""

    id: str
    where: str
    why: str
    family: str = ""


@dataclass(frozen=True, slots=True)
class TrainingRuns:
    """The rows of a file, in its order."""

    runs: tuple[TrainingRun, ...]
    skipped: tuple[SkippedRun, ...] = ()
    notes: tuple[str, ...] = ()
    """Assumptions about all rows."""


class _UnusableError(Exception):
    """A row that cannot be used."""


def read_training_runs(path: str | Path) -> TrainingRuns:
    """Reads a CSV of runs, or a file of JSON lines."""
    data = read_whole(path, "table of training runs", COLUMNS, MAX_BYTES)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("not-text", "this is no text in UTF-8", where=str(path), hint=COLUMNS) from None
    if not text.strip():
        raise InputError("empty-file", "the file is empty", where=str(path), hint=COLUMNS)
    check_limit(text.count("\n"), MAX_LINES, "lines", str(path))
    return _read_json_lines(text, str(path)) if text.lstrip().startswith("{") else _read_csv(text, str(path))


def _read_csv(text: str, name: str) -> TrainingRuns:
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        columns = [column.strip() for column in next(reader)]
        check_limit(len(columns), _MAX_COLUMNS, "columns", f"{name}:1")
        _check_columns(columns, name)
        runs, skipped, before = list[TrainingRun](), list[SkippedRun](), reader.line_num
        lines: dict[tuple[str, ...], int] = {}
        for values in reader:
            where, before = f"{name}:{before + 1}", reader.line_num
            if not any(value.strip() for value in values):
                continue
            row = {column: value.strip() for column, value in zip(columns, values, strict=False)}
            try:
                if len(values) != len(columns):
                    raise _UnusableError(f"it has {len(values)} cells under {len(columns)} columns")
                _check_lengths(row)
                first = lines.setdefault(tuple(values), reader.line_num)
                if first != reader.line_num:
                    raise _UnusableError(f"it repeats line {first}")
                runs.append(TrainingRun(_csv_config(row, where), _csv_measurement(row)))
            except _UnusableError as problem:
                called, family = _shown(row.get("id") or where), _shown(row.get("family", ""))
                skipped.append(SkippedRun(called, where, str(problem), family))
    except csv.Error as error:
        raise InputError(
            "bad-syntax", f"this is no CSV: {error}", where=f"{name}:{reader.line_num}", hint=COLUMNS
        ) from None
    notes = [] if _GRADE in columns else [f'there is no column "{_GRADE}": every row counts as grade {UNGRADED}']
    unread = [_shown(column) for column in columns if column not in (*_READ, *_ABOUT)]
    notes += [f"columns that are not read: {listed(unread, 8)}"] if unread else []
    return TrainingRuns(tuple(runs), tuple(skipped), (*notes, *_repeated_ids(runs)))


def _repeated_ids(runs: list[TrainingRun]) -> list[str]:
    """Returns the note that rows with different content have one id."""
    counts = Counter(run.config.id for run in runs)
    repeated = [name for name, count in counts.items() if count > 1]
    if not repeated:
        return []
    return [f"ids of several rows, each of which counts: {listed(repeated, 5)}"]


def _check_lengths(row: dict[str, str]) -> None:
    for name, text in row.items():
        if len(text) > (_MAX_NAME if name in _NAMES else _MAX_TEXT):
            raise _UnusableError(f"{_shown(name)} has {len(text):,} characters")


def _check_columns(columns: list[str], name: str) -> None:
    for needed in _NEEDED:
        if needed not in columns:
            problem = f'there is no column "{needed}"{did_you_mean(needed, columns)}'
            other = next((mark for mark, split in _SEPARATORS.items() if len(columns) == 1 and split in columns[0]), "")
            hint = f"cells are parted by {other} here: part them by commas" if other else COLUMNS
            raise InputError("missing-field", problem, where=f"{name}:1", hint=hint)
    if not any(column in columns for column in _MEASURED):
        raise InputError(
            "missing-field", f"there is no column {' or '.join(_MEASURED)}", where=f"{name}:1", hint=COLUMNS
        )
    twice = next((column for column in columns if column and columns.count(column) > 1), None)
    if twice is not None:
        raise InputError(
            "duplicate-name", f'the column "{_shown(twice)}" is there twice', where=f"{name}:1", hint=COLUMNS
        )


def _csv_config(row: dict[str, str], where: str) -> RunConfig:
    for needed in _NEEDED:
        if not row.get(needed):
            raise _UnusableError(f"{needed} is empty")
    gpus = _whole(row, "gpus")
    assert gpus is not None
    sequence_parallel = row.get("sp", "").lower()
    if sequence_parallel not in ("", "yes", "no"):
        raise _UnusableError(f'sp is "{_shown(sequence_parallel)}", neither yes nor no')
    return RunConfig(
        id=row["id"],
        where=where,
        family=row.get("family", ""),
        grade=row.get(_GRADE, UNGRADED),
        model=row["model"],
        layers=_whole(row, "layers"),
        hidden=_whole(row, "hidden"),
        ffn=_whole(row, "ffn_hidden"),
        heads=_whole(row, "heads"),
        kv_heads=_whole(row, "kv_heads"),
        vocab=_whole(row, "vocab"),
        seq_len=_whole(row, "seq_len"),
        gpu=row["gpu"],
        gpus=gpus,
        mbs=_whole(row, "mbs"),
        gbs=_whole(row, "gbs"),
        head_dim=_whole(row, "head_dim"),
        experts=_whole(row, "experts"),
        topk=_whole(row, "topk"),
        gpus_per_node=_whole(row, "gpus_per_node"),
        interconnect=row.get("interconnect", ""),
        dtype=row.get("dtype", ""),
        tp=_whole(row, "tp") or 1,
        pp=_whole(row, "pp") or 1,
        vpp=_whole(row, "vpp") or 1,
        cp=_whole(row, "cp") or 1,
        ep=_whole(row, "ep") or 1,
        sequence_parallel=None if not sequence_parallel else sequence_parallel == "yes",
        sharding=row.get("zero_fsdp", ""),
        recompute=row.get("recompute", ""),
        overlap=row.get("overlap", ""),
        notes=row.get("notes", ""),
    )


def _csv_measurement(row: dict[str, str]) -> RunMeasurement:
    reported, derived = (_positive(row, column) for column in _MEASURED)
    step = reported if reported is not None else derived
    if step is None:
        raise _UnusableError("no step time was measured")
    return RunMeasurement(step, reported is None, peak_bytes=_gib(row, "memory_gb"), memory_kind=_memory_kind(row))


def _memory_kind(row: dict[str, str]) -> MemoryKind:
    """Returns what the memory of a row counts: as its column says, or as its family is known to."""
    word = row.get("memory_kind", "").lower()
    if word not in ("", *MEMORY_KINDS):
        raise _UnusableError(f'memory_kind is "{_shown(word)}", expected one of {", ".join(MEMORY_KINDS)}')
    family = row.get("family", "").lower()
    known = next((kind for start, kind in _FAMILY_MEMORY.items() if family.startswith(start)), MEMORY_KINDS[0])
    return next((kind for kind in MEMORY_KINDS if kind == word), known)


def _distinct(where: str, pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Returns an object of JSON; raises an error where a key is there twice."""
    values: dict[str, object] = {}
    for key, value in pairs:
        if key in values:
            raise InputError("duplicate-name", f"{_shown(key)} is given twice", where=where, hint="give it once")
        values[key] = value
    return values


def _read_json_lines(text: str, name: str) -> TrainingRuns:
    runs, skipped, unknown = list[TrainingRun](), list[SkippedRun](), dict[str, None]()
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{name}:{number}"
        if not line.strip():
            continue
        row = read_json(line, where, '{"name": …, "step_ms": …}', partial(_distinct, where))
        if not isinstance(row, dict):
            raise InputError("bad-value", "expected an object", where=where, hint='{"name": …, "step_ms": …}')
        # Which run of the same name it is, its line tells.
        called = f"{_shown(row.get('name') or 'run')}#{number}"
        unknown |= dict.fromkeys(set(row) - {*_JSON_CONFIG, *_JSON_MEASURED, *_JSON_ABOUT})
        try:
            first = lines.setdefault(line.strip(), number)
            if first != number:
                raise _UnusableError(f"it repeats line {first}")
            runs.append(TrainingRun(_json_config(row, called, where), _json_measurement(row)))
        except _UnusableError as problem:
            skipped.append(SkippedRun(called, where, str(problem), _shown(row.get("family", "single-gpu"))))
    notes = (f"fields that are not read: {listed(sorted(unknown))}",) if unknown else ()
    return TrainingRuns(tuple(runs), tuple(skipped), notes)


def _json_config(row: dict[str, Any], called: str, where: str) -> RunConfig:
    if row.get("ok") is False:
        raise _UnusableError(f"the run failed: {_shown(row.get('error') or 'no reason is given')}")
    for needed in ("layers", "hidden", "ffn", "heads", "seq", "mbs"):
        if _whole(row, needed) is None:
            raise _UnusableError(f"{needed} is missing")
    compiled, style = row.get("compile", False), row.get("style", "llama")
    if not isinstance(compiled, bool) or style not in ("gpt", "llama"):
        raise _UnusableError("compile must be true or false, style gpt or llama")
    return RunConfig(
        id=called,
        where=where,
        family=_text(row, "family", "single-gpu"),
        grade=_text(row, "grade", "A"),
        model=_text(row, "name", "run"),
        layers=_whole(row, "layers"),
        hidden=_whole(row, "hidden"),
        ffn=_whole(row, "ffn"),
        heads=_whole(row, "heads"),
        kv_heads=_whole(row, "kv"),
        vocab=_whole(row, "vocab", least=0),
        seq_len=_whole(row, "seq"),
        gpu=_text(row, "gpu", "H200"),
        gpus=1,
        mbs=_whole(row, "mbs"),
        gbs=_whole(row, "mbs"),
        head_dim=_whole(row, "head_dim"),
        experts=_whole(row, "experts"),
        topk=_whole(row, "topk"),
        dtype=_json_dtype(row),
        recompute=_json_recompute(row),
        style=style,
        compiled=compiled,
        share=_whole(row, "tp") or 1,
        expert_ffn=_whole(row, "expert_ffn"),
        shared_ffn=_whole(row, "shared_ffn"),
        q_lora_rank=_whole(row, "q_lora_rank"),
        kv_lora_rank=_whole(row, "kv_lora_rank"),
        nope_dim=_whole(row, "nope_dim"),
        rope_dim=_whole(row, "rope_dim"),
        v_dim=_whole(row, "v_dim"),
        offload_layers=_whole(row, "offload_layers", least=0) or 0,
        grad_dtype=cast(GradDtype | None, _word(row, "grad_dtype")),
        master_dtype=cast(MasterDtype | None, _word(row, "master_dtype")),
        moment_dtype=cast(MomentDtype | None, _word(row, "moment_dtype")),
    )


def _json_dtype(row: dict[str, Any]) -> str:
    """Returns the dtype of a run: parameters and products are of the same, as `torch.set_default_dtype` makes them."""
    parameters = _text(row, "param_dtype", "")
    dtype = _text(row, "dtype", parameters or "bf16")
    if parameters not in ("", dtype):
        raise _UnusableError(f"parameters in {_shown(parameters)} next to products in {_shown(dtype)} are not modelled")
    return dtype


def _json_recompute(row: dict[str, Any]) -> str:
    """Returns what is recomputed as tables write it: `none`, `full` or `selective:mlp+core_attn`."""
    modules, recompute = row.get("recompute_modules") or [], _text(row, "recompute", "none")
    if not isinstance(modules, list) or not all(isinstance(module, str) for module in modules):
        raise _UnusableError("recompute_modules must be a list of names")
    if modules and recompute not in ("none", "selective"):
        raise _UnusableError(f"recompute is {_shown(recompute)}, which leaves no modules to recompute")
    return f"selective:{'+'.join(modules)}" if modules else recompute


def _word(row: dict[str, Any], name: str) -> str | None:
    """Returns one of the few words of a field of plans; None where the row says nothing."""
    word = _text(row, name, "")
    if word not in ("", *OPEN_WORDS[name]):
        raise _UnusableError(f'{name} is "{_shown(word)}", expected one of {", ".join(OPEN_WORDS[name])}')
    return word or None


def _json_measurement(row: dict[str, Any]) -> RunMeasurement:
    step, peaks = _positive(row, "step_ms"), [_gib(row, f"{name}_gb") for name in ("peak", "reserved", "used")]
    if step is None and not any(peaks):
        raise _UnusableError("no step time was measured")
    parts = [_positive(row, f"{part}_ms") for part in ("fwd", "bwd", "opt")]
    forward, backward, optimizer = (None if part is None else part / 1e3 for part in parts)
    return RunMeasurement(
        None if step is None else step / 1e3, False, forward, backward, optimizer, peaks[0], "allocated", *peaks[1:]
    )


def _gib(row: dict[str, Any], name: str) -> float | None:
    """Returns a size in bytes: GiB in tables, whatever columns are called."""
    size = _positive(row, name)
    return None if size is None else size * GIB


def _whole(row: dict[str, Any], name: str, least: int = 1) -> int | None:
    """A whole number; None where the row says nothing."""
    value, most = row.get(name), MAX_LAYERS if name == "layers" else 10**9
    if value is None or value == "":
        return None
    try:
        return whole_number(value, least=least, most=most)
    except NumberError:
        problem = f"{name} is {_shown(value)}, expected a whole number from {least} to {most:,}"
        raise _UnusableError(problem) from None


def _positive(row: dict[str, Any], name: str) -> float | None:
    """Returns a number above 0 of any unit; None where the row has none."""
    value = row.get(name)
    if value is None or value == "":
        return None
    try:
        return real_number(value, least=_MIN_VALUE, most=_MAX_VALUE)
    except NumberError as error:
        raise _UnusableError(f"{name} is {_shown(value)}, which {error.problem}") from None


def _text(row: dict[str, Any], name: str, default: str) -> str:
    """Returns a text of a line of JSON; the default where the row has none."""
    value = row.get(name)
    if value is None:
        return default
    if not isinstance(value, str) or len(value) > _MAX_NAME:
        raise _UnusableError(f"{name} is {_shown(value)}, expected text of at most {_MAX_NAME} characters")
    return value


def _shown(value: object) -> str:
    """Returns a value of a row as messages show it."""
    text = value if isinstance(value, str) else repr(value) if isinstance(value, int | float) else type(value).__name__
    return shown(" ".join(text[: 2 * _MAX_NAME].split()))


def runs_of_family(runs: TrainingRuns, family: str | None, where: str) -> TrainingRuns:
    """Returns the runs of one source; all of them where `family` is None."""
    if family is None:
        return runs
    families = sorted({run.config.family for run in runs.runs} | {run.family for run in runs.skipped})
    if family not in families:
        problem = f'no run is of family "{_shown(family)}"{did_you_mean(family, families)}'
        raise InputError("unknown-name", problem, where=where, hint=f"there are {', '.join(families)}")
    kept = tuple(run for run in runs.runs if run.config.family == family)
    skipped = tuple(run for run in runs.skipped if run.family == family)
    return replace(runs, runs=kept, skipped=skipped)
