"""Reads and writes calibrations: measurements of a user's machine, as a YAML file with tables next to it.

```yaml
calibration: 1
gpu: h200-sxm
made_of:
- {file: step.json.gz, kind: trace, kernels: 45, step_s: 0.1338, products: 267, flops: 6.2e+13}
kernels: my.kernels.profile           # a kernel profile (foretrace.cost.kernels.kernel_profile)
collectives: my.collectives.csv       # collective,gpus,nodes,bytes,time_us
families:
- {name: gemm bf16 tn, kernels: 7, factor: 0.98, low: 0.95, high: 1.02, error: 0.02}
host: {launch_s: 2.9e-05, launches: 2602, style: eager}
```
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from foretrace.basics.documents import Document, Fields
from foretrace.basics.errors import InputError, shortened
from foretrace.basics.outputs import write_whole
from foretrace.cost.kernels.kernel_profile import KernelProfile, KernelTimes, read_profile, write_profile
from foretrace.cost.network.nccl_tests.reader import read_measurements
from foretrace.cost.network.nccl_tests.records import Measurements

VERSION: Final = 1
InputKind = Literal["trace", "table", "kernel profile", "collectives", "steps"]
KINDS: Final = ("trace", "table", "kernel profile", "collectives", "steps")
_KEYS: Final = (
    *("calibration", "gpu", "device", "software", "made_of", "kernels", "collectives", "families", "host", "steps"),
)
_MADE_KEYS: Final = ("file", "kind", "kernels", "collectives", "step_s", "busy", "slower", "products", "flops", "rows")
_FAMILY_KEYS: Final = ("name", "kernels", "factor", "low", "high", "error")
_EXAMPLE: Final = "calibration: 1"
_EXPECTED: Final = "a calibration is what `foretrace calibrate INPUT... -o my.yaml` writes"
_EAGER_STREAMS: Final = frozenset({"silu", "gelu", "mul"})
"""Kernels that only activations run operator by operator have: fused stacks run one kernel for all of them."""
_FUSED_STREAMS: Final = frozenset({"swiglu", "geglu"})
MAX_VALUE: Final = 1e18
MAX_LAUNCH_S: Final = 1.0


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
class Calibration:
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
    node = document.compose(document.read())
    entries = document.entries(node, "a calibration")
    if "calibration" not in entries:
        raise InputError("wrong-format", "this is no calibration", where=path, hint=_EXPECTED)
    root = document.fields(node, _KEYS, ("calibration", "gpu"))
    version = root.text("calibration", "")
    if version != str(VERSION):
        hint = f"this version of Foretrace reads {VERSION}; make the calibration anew with foretrace calibrate"
        raise InputError(
            "unknown-version", f'version "{version}" is not known', where=root.where("calibration"), hint=hint
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
        calibration = replace(calibration, kernels=read_profile(_beside(root, "kernels")))
    if "collectives" in root:
        measured = read_measurements(_beside(root, "collectives"))
        count = len(measured.rows)
        calibration = replace(
            calibration, collectives=replace(measured, source=f"calibration {calibration.name} ({count:,} calls)")
        )
    if (
        calibration.kernels is None
        and calibration.collectives is None
        and calibration.host is None
        and calibration.steps is None
    ):
        raise InputError("empty-file", "the calibration holds nothing", where=path, hint=_EXPECTED)
    return calibration


def _beside(root: Fields, name: str) -> Path:
    """The table that a field names, from where the calibration stands."""
    document = root.document
    table = Path(document.path).parent / document.text(root[name], f"{name}: the name of a file")
    if not table.is_file():
        hint = "it belongs beside the calibration: move both together, or calibrate anew"
        raise InputError("file-not-found", f"the table {table.name} is missing", where=root.where(name), hint=hint)
    return table


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
            "unknown-name", f'kind "{kind}" is not known', where=fields.where("kind"), hint=f"known: {', '.join(KINDS)}"
        )
    counts = {name: int(_number(fields, name)) for name in ("kernels", "collectives", "products", "rows")}
    sizes = {name: _number(fields, name) for name in ("step_s", "busy", "slower", "flops")}
    return MadeOf(fields.text("file", ""), input_kind, **counts, **sizes)  # type: ignore[arg-type]


def _family(fields: Fields) -> FamilyFit:
    name, count = fields.text("name", ""), int(_number(fields, "kernels"))
    factors = {key: _number(fields, key, above_zero=True) for key in ("factor", "low", "high")}
    return FamilyFit(name, count, **factors, error=_number(fields, "error"))


def _host(root: Fields) -> HostFit | None:
    if "host" not in root:
        return None
    fields = root.document.fields(root["host"], ("launch_s", "launches", "style"), ("launch_s", "launches"))
    style = fields.text("style", "eager")
    if style not in ("eager", "compiled"):
        raise InputError(
            "unknown-name", f'style "{style}" is not known', where=fields.where("style"), hint="known: eager, compiled"
        )
    launch_s = _number(fields, "launch_s", above_zero=True, most=MAX_LAUNCH_S)
    launches = int(_number(fields, "launches"))
    return HostFit(launch_s, launches, "eager" if style == "eager" else "compiled")


def _steps(root: Fields) -> StepFit | None:
    if "steps" not in root:
        return None
    names = ("factor", "rows", "error", "before")
    fields = root.document.fields(root["steps"], names, names)
    factor = _number(fields, "factor", above_zero=True)
    return StepFit(factor, int(_number(fields, "rows")), _number(fields, "error"), _number(fields, "before"))


def _number(fields: Fields, name: str, above_zero: bool = False, most: float = MAX_VALUE) -> float:
    """A number that is not below 0; 0 where the field is absent."""
    if name not in fields:
        return 0.0
    text = fields.document.text(fields[name], f"{name}: a number")
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most or (above_zero and value == 0):
        least = "above 0" if above_zero else "from 0"
        raise InputError(
            "out-of-range",
            f"{name} is {shortened(text)}",
            where=fields.where(name),
            hint=f"expected a number {least}, at most {most:g}",
        )
    return value


def beside(path: Path) -> tuple[Path, Path]:
    """Returns the paths of the tables of kernels and of collectives."""
    return path.with_name(f"{path.stem}.kernels.profile"), path.with_name(f"{path.stem}.collectives.csv")


def write_calibration(calibration: Calibration) -> tuple[Path, ...]:
    """Writes a calibration to its path and its tables next to it; returns the files written."""
    path = Path(calibration.path)
    written: list[Path] = []
    content: dict[str, Any] = {"calibration": VERSION, "gpu": calibration.gpu}
    content |= {"device": calibration.device} if calibration.device else {}
    content |= {"software": dict(calibration.software)} if calibration.software else {}
    content |= {"made_of": [_plain(record) for record in calibration.made_of]} if calibration.made_of else {}
    if calibration.kernels is not None:
        table = beside(path)[0]
        _write_kernels(table, calibration.kernels)
        content["kernels"] = table.name
        written.append(table)
    if calibration.collectives is not None:
        table = beside(path)[1]
        write_whole(table, [_collectives_csv(calibration.collectives).encode()], "table of collectives")
        content["collectives"] = table.name
        written.append(table)
    content |= {"families": [_plain(family) for family in calibration.families]} if calibration.families else {}
    for name, part in (("host", calibration.host), ("steps", calibration.steps)):
        content |= {} if part is None else {name: _plain(part)}
    write_whole(path, [_yaml(content).encode()], "calibration")
    return (path, *written)


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


def _write_kernels(path: Path, profile: KernelProfile) -> None:
    columns = (profile.burst_s, profile.sustained_s, profile.clock_mhz, profile.power_w)
    rows = zip(profile.kernels, *(column.tolist() for column in columns), strict=True)
    write_profile(path, profile.facts, [KernelTimes(*row) for row in rows])


def _collectives_csv(measured: Measurements) -> str:
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n").writerow
    write(["collective", "gpus", "nodes", "bytes", "time_us"])
    for row in measured.rows:
        write([row.collective.name.lower(), row.gpus, row.nodes, row.size_bytes, f"{1e6 * row.time_s:.6g}"])
    return out.getvalue()
