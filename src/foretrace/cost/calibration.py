"""Reads and writes calibrations: measurements of a user's machine, as one YAML file.

```yaml
calibration: 2
gpu: h200-sxm
made_of:
- {file: step.json.gz, kind: trace, kernels: 45, step_s: 0.1338, products: 267, flops: 6.2e+13}
families:
- {name: gemm bf16 tn, kernels: 7, factor: 0.98, low: 0.95, high: 1.02, error: 0.02}
host: {launch_s: 2.9e-05, launches: 2602, style: eager}
sha256: {kernels: 5b4e…, collectives: 90c1…}
kernels: |2
  # foretrace kernel profile: 1
  …
collectives: |2
  collective,gpus,nodes,bytes,time_us,hardware
  …
```

The tables are in the file, so that they are written, replaced, copied and moved together, and their hashes tell whether
they are those that were written. Version 1 named two files next to it, which nothing bound: they are still read.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from foretrace.basics.documents import Document, Fields
from foretrace.basics.errors import Diagnostic, InputError, printable, quoted, shown
from foretrace.basics.files import read_whole
from foretrace.basics.numbers import NumberError, real_number
from foretrace.basics.outputs import write_whole
from foretrace.basics.viewable import Viewable
from foretrace.cost.kernels.kernel_profile import KernelProfile, KernelTimes, parse_profile, profile_text
from foretrace.cost.network.nccl_tests.aggregation import measurements_of
from foretrace.cost.network.nccl_tests.reader import parse_measurements
from foretrace.cost.network.nccl_tests.records import Measurements

VERSION: Final = 2
_KNOWN_VERSIONS: Final = ("1", "2")
MAX_BYTES: Final = 8 << 20
"""Bytes of a calibration: one of 2,000 kernels has 170 kB."""
InputKind = Literal["trace", "table", "kernel profile", "collectives", "steps"]
KINDS: Final = ("trace", "table", "kernel profile", "collectives", "steps")
_KEYS: Final = (
    *("calibration", "gpu", "device", "software", "made_of", "kernels", "collectives", "families", "host", "steps"),
    "sha256",
)
_MADE_KEYS: Final = ("file", "kind", "kernels", "collectives", "step_s", "busy", "slower", "products", "flops", "rows")
_FAMILY_KEYS: Final = ("name", "kernels", "factor", "low", "high", "error")
_EXAMPLE: Final = "calibration: 2"
_EXPECTED: Final = "a calibration is what `foretrace calibrate INPUT... -o my.yaml` writes"
_EAGER_STREAMS: Final = frozenset({"silu", "gelu", "mul"})
"""Kernels that only activations run operator by operator have: fused stacks run one kernel for all of them."""
_FUSED_STREAMS: Final = frozenset({"swiglu", "geglu"})
MIN_VALUE, MAX_VALUE = 1e-12, 1e18
MIN_LAUNCH_S, MAX_LAUNCH_S = 1e-7, 5e-3
"""The range of the host's time per launch: 10 to 100 µs are usual. Beyond it a unit is mistaken."""


@dataclass(frozen=True, slots=True)
class MadeOf:
    """One input: how many kernels and collectives it gave (steps: rows). Of a trace also the seconds of its step, the
    share of these in which the GPU worked, how many times as long as at full clocks its products took, and how many
    products (matrix products and attention) with how many FLOPs a step has, by which a job is known to be the same."""

    file: str
    kind: InputKind
    kernels: int = 0
    collectives: int = 0
    step_s: float = 0.0
    busy: float = 0.0
    slower: float = 0.0
    products: int = 0
    flops: float = 0.0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class FamilyFit:
    """Compares the kernels of one family with the kernel model: the geometric mean of measured over modelled time, and
    the factors between which nine in ten lie.

    `error` is the 90 % error, as a logarithm, of a kernel that is left out and priced by the others.
    """

    name: str
    kernels: int
    factor: float
    low: float
    high: float
    error: float


@dataclass(frozen=True, slots=True)
class HostFit:
    """The host's seconds per launch without a profiler, over `launches` launches."""

    launch_s: float
    launches: int
    style: Literal["eager", "compiled"] = "eager"


@dataclass(frozen=True, slots=True)
class StepFit:
    """A factor on all computation, fitted to whole steps of `rows` rows.

    `before` and `error` are the mean absolute errors of their step times without and with the factor.
    """

    factor: float
    rows: int
    error: float
    before: float


@dataclass(frozen=True, slots=True, eq=False)
class Calibration(Viewable):
    """A calibration as read, or about to be written. `gpu` is a preset's name, `device` what the driver calls it."""

    path: str
    gpu: str
    device: str = ""
    software: Mapping[str, str] | None = None
    made_of: tuple[MadeOf, ...] = ()
    kernels: KernelProfile | None = None
    collectives: Measurements | None = None
    families: tuple[FamilyFit, ...] = ()
    host: HostFit | None = None
    steps: StepFit | None = None
    notes: tuple[Diagnostic, ...] = ()
    """Remarks on the file for its user."""

    @property
    def name(self) -> str:
        """Returns the name that answers use."""
        return Path(self.path).name

    @property
    def at_step_clocks(self) -> bool:
        """Returns whether products of it were recorded amid training steps, at clocks that were these steps' own."""
        products = self.kernels is not None and any(kernel.flops > 0 for kernel in self.kernels.kernels)
        return products and any(record.slower > 0 for record in self.made_of)

    @property
    def is_of_eager_kernels(self) -> bool:
        """Returns whether its activations were run operator by operator, as eager PyTorch does."""
        names = {family.name.removeprefix("stream ").partition("_")[0] for family in self.families}
        return bool(names & _EAGER_STREAMS) and not names & _FUSED_STREAMS

    @property
    def source(self) -> str:
        """The same with how many kernels it knows."""
        count = 0 if self.kernels is None else len(self.kernels.kernels)
        return f"calibration {self.name} ({count:,} kernels)"

    def check_gpu(self, gpu: str) -> None:
        """An error where it is of another GPU than this."""
        if gpu != self.gpu:
            raise InputError(
                "other-gpu",
                f"the calibration is of {self.gpu}, the job runs on {gpu}",
                where=self.path,
                hint=f"name a cluster of {self.gpu}, or calibrate on {gpu}",
            )


def read_calibration(path: str | Path) -> Calibration:
    """The calibration in a YAML file, with its tables; read once while the file stays as it is."""
    try:
        facts = Path(path).stat()
    except (OSError, ValueError):
        return _read(str(path))  # says what is wrong
    return _cached(str(path), facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=8)
def _cached(path: str, changed_ns: int, size: int) -> Calibration:  # noqa: ARG001 - a file that changed is another
    return _read(path)


def _read(path: str) -> Calibration:
    document = Document(path, "calibration", _EXPECTED, _EXAMPLE)
    node = document.compose(document.read(MAX_BYTES))
    entries = document.entries(node, "a calibration")
    if "calibration" not in entries:
        raise InputError("wrong-format", "this is not a calibration", where=path, hint=_EXPECTED)
    root = document.fields(node, _KEYS, ("calibration", "gpu"))
    version = root.text("calibration", "")
    if version not in _KNOWN_VERSIONS:
        hint = f"this version of Foretrace reads {VERSION}; make the calibration again with foretrace calibrate"
        raise InputError(
            "unknown-version",
            f"version {quoted(version)} is not known",
            where=root.where("calibration"),
            hint=hint,
        )
    calibration = Calibration(
        path=path,
        gpu=root.text("gpu", ""),
        device=root.text("device", ""),
        software=_software(root),
        made_of=tuple(_made_of(mapping) for mapping in _mappings(root, "made_of", _MADE_KEYS, ("file", "kind"))),
        families=tuple(_family(mapping) for mapping in _mappings(root, "families", _FAMILY_KEYS, _FAMILY_KEYS)),
        host=_host(root),
        steps=_steps(root),
    )
    if "kernels" in root:
        calibration = replace(calibration, kernels=parse_profile(*_table(root, "kernels")))
    if "collectives" in root:
        calibration = replace(calibration, collectives=_collectives(root, calibration.name))
    if unbound := [name for name in ("kernels", "collectives") if name in root and name not in _hashes(root)]:
        text = f"nothing binds its {' and '.join(unbound)} to it, as in earlier versions: calibrate again to bind them"
        calibration = replace(calibration, notes=(Diagnostic("note", "unbound-tables", text, path),))
    if (
        calibration.kernels is None
        and calibration.collectives is None
        and calibration.host is None
        and calibration.steps is None
    ):
        raise InputError("empty-file", "the calibration holds nothing", where=path, hint=_EXPECTED)
    return calibration


def _collectives(root: Fields, name: str) -> Measurements:
    text, where = _table(root, "collectives")
    parsed = parse_measurements(text, where)
    if parsed is None or not parsed[0]:
        raise InputError("wrong-format", "these are not measured collectives", where=where, hint=_EXPECTED)
    measured = measurements_of(*parsed, where)
    return replace(measured, source=f"calibration {name} ({len(measured.rows):,} calls)")


def _table(root: Fields, name: str) -> tuple[str, str]:
    """Returns the text of a table, in the calibration or next to it, and what errors call it.

    Raises an error where it is not the table that the calibration was written with.
    """
    document = root.document
    text = document.text(root[name], f"{name}: a table, or the name of its file")
    where = f"{document.path} ({name})"
    if "\n" not in text.strip():
        where = str(_file_of(root, name, text.strip()))
        text = read_whole(where, f"table of {name}", _EXPECTED, MAX_BYTES).decode("utf-8", "replace")
    expected = _hashes(root).get(name)
    if expected is not None and expected != _hash(text):
        between = "" if where.startswith(document.path) else f" of {document.path}"
        raise InputError(
            "damaged-file",
            f"these are not the {name} that the calibration{between} was written with",
            where=where,
            hint="calibrate again; where the change is meant, remove the line sha256",
        )
    return text, where


def _file_of(root: Fields, name: str, file: str) -> Path:
    """Returns the table that a calibration of an earlier version names, from where the calibration stands."""
    table = Path(root.document.path).parent / file
    try:
        is_file = table.is_file()
    except (OSError, ValueError):
        is_file = False
    if not is_file:
        hint = "it belongs next to the calibration: move both together, or calibrate again"
        problem = f"the table {shown(table.name)} is missing"
        raise InputError("file-not-found", problem, where=root.where(name), hint=hint)
    return table


def _hashes(root: Fields) -> dict[str, str]:
    if "sha256" not in root:
        return {}
    names = ("kernels", "collectives")
    fields = root.document.fields(root["sha256"], names, ())
    return {name: fields.text(name, "") for name in names if name in fields}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _mappings(root: Fields, name: str, known: tuple[str, ...], required: tuple[str, ...]) -> list[Fields]:
    if name not in root:
        return []
    document = root.document
    return [document.fields(node, known, required) for node in document.items(root[name], f"{name}: a list")]


def _software(root: Fields) -> dict[str, str]:
    if "software" not in root:
        return {}
    document = root.document
    entries = document.entries(root["software"], "software: names and versions")
    return {name: document.text(value, f"{name}: a version") for name, (_, value) in entries.items()}


def _made_of(fields: Fields) -> MadeOf:
    kind = fields.text("kind", "")
    input_kind: InputKind | None = next((known for known in KINDS if known == kind), None)
    if input_kind is None:
        raise InputError(
            "unknown-name",
            f"kind {quoted(kind)} is not known",
            where=fields.where("kind"),
            hint=f"known: {', '.join(KINDS)}",
        )
    counts = {name: int(_number(fields, name)) for name in ("kernels", "collectives", "products", "rows")}
    sizes = {name: _number(fields, name) for name in ("step_s", "busy", "slower", "flops")}
    return MadeOf(fields.text("file", ""), input_kind, **counts, **sizes)  # type: ignore[arg-type]


def _family(fields: Fields) -> FamilyFit:
    name, count = fields.text("name", ""), int(_number(fields, "kernels"))
    factors = {key: _number(fields, key, least=MIN_VALUE) for key in ("factor", "low", "high")}
    return FamilyFit(name, count, **factors, error=_number(fields, "error"))


def _host(root: Fields) -> HostFit | None:
    if "host" not in root:
        return None
    fields = root.document.fields(root["host"], ("launch_s", "launches", "style"), ("launch_s", "launches"))
    style = fields.text("style", "eager")
    if style not in ("eager", "compiled"):
        raise InputError(
            "unknown-name",
            f"style {quoted(style)} is not known",
            where=fields.where("style"),
            hint="known: eager, compiled",
        )
    launch_s = _number(fields, "launch_s", least=MIN_LAUNCH_S, most=MAX_LAUNCH_S)
    launches = int(_number(fields, "launches"))
    return HostFit(launch_s, launches, "eager" if style == "eager" else "compiled")


def _steps(root: Fields) -> StepFit | None:
    if "steps" not in root:
        return None
    names = ("factor", "rows", "error", "before")
    fields = root.document.fields(root["steps"], names, names)
    factor = _number(fields, "factor", least=MIN_VALUE)
    return StepFit(factor, int(_number(fields, "rows")), _number(fields, "error"), _number(fields, "before"))


def _number(fields: Fields, name: str, least: float = 0.0, most: float = MAX_VALUE) -> float:
    """A number from `least` to `most`; 0 where the field is absent."""
    if name not in fields:
        return 0.0
    text = fields.document.text(fields[name], f"{name}: a number")
    try:
        return real_number(text, least=least, most=most)
    except NumberError as error:
        problem = f"{name} is {shown(text)}"
        hint = f"expected a number from {least:g} to {most:g}"
        raise InputError(error.code, problem, where=fields.where(name), hint=hint) from None


def write_calibration(calibration: Calibration) -> Path:
    """Writes a calibration to its path in one go, and returns the path."""
    path = Path(calibration.path)
    content: dict[str, Any] = {"calibration": VERSION, "gpu": calibration.gpu}
    content |= {"device": calibration.device} if calibration.device else {}
    content |= {"software": dict(calibration.software)} if calibration.software else {}
    content |= {"made_of": [_plain(record) for record in calibration.made_of]} if calibration.made_of else {}
    content |= {"families": [_plain(family) for family in calibration.families]} if calibration.families else {}
    for name, part in (("host", calibration.host), ("steps", calibration.steps)):
        content |= {} if part is None else {name: _plain(part)}
    tables = _tables(calibration)
    content |= {"sha256": {name: _hash(text) for name, text in tables.items()}} if tables else {}
    blocks = (f"{name}: |2\n" + "".join(f"  {line}\n" for line in text.splitlines()) for name, text in tables.items())
    write_whole(path, [_yaml(_readable(content)).encode(), *(block.encode() for block in blocks)], "calibration")
    return path


def _readable(value: Any) -> Any:
    """Returns content with texts on one line, without characters that a reader refuses."""
    if isinstance(value, dict):
        return {_readable(name): _readable(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_readable(part) for part in value]
    return printable(" ".join(value.split())) or "?" if isinstance(value, str) else value


def _yaml(content: dict[str, Any]) -> str:
    import yaml

    head = "# Written by `foretrace calibrate`; `foretrace calibration show` says what is in it.\n"
    return head + yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)


def _plain(part: MadeOf | FamilyFit | HostFit | StepFit) -> dict[str, Any]:
    """The fields that say something, numbers with as many digits as they are worth."""
    from dataclasses import asdict

    # FLOPs tell jobs apart, and keep more digits.
    values = {
        name: float(f"{value:.{10 if name == 'flops' else 5}g}") if isinstance(value, float) else value
        for name, value in asdict(part).items()
    }
    return {name: value for name, value in values.items() if value or not isinstance(part, MadeOf)}


def _tables(calibration: Calibration) -> dict[str, str]:
    """Returns the texts of the tables of kernels and of collectives; those of none are left out."""
    tables = {}
    if (profile := calibration.kernels) is not None:
        columns = (profile.burst_s, profile.sustained_s, profile.clock_mhz, profile.power_w)
        rows = zip(profile.kernels, *(column.tolist() for column in columns), strict=True)
        tables["kernels"] = profile_text(profile.facts, [KernelTimes(*row) for row in rows])
    if calibration.collectives is not None:
        tables["collectives"] = _collectives_csv(calibration.collectives)
    return tables


def _collectives_csv(measured: Measurements) -> str:
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n").writerow
    write(["collective", "gpus", "nodes", "bytes", "time_us", "hardware"])
    for row in measured.rows:
        time_us, gpu = f"{1e6 * row.time_s:.6g}", printable(" ".join(row.gpu.split()))
        write([row.collective.name.lower(), row.gpus, row.nodes, row.size_bytes, time_us, gpu])
    return out.getvalue()
