"""Describes to a page what can be asked: models, clusters, examples, what-ifs, and the fields of its form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foretrace import __version__
from foretrace.basics.units import format_bytes
from foretrace.hardware import presets as hardware_presets
from foretrace.hardware.changes import FIGURES, PARTS
from foretrace.inputs.option_texts import HOST_WHAT_IFS
from foretrace.inputs.registry import kinds
from foretrace.models import presets as model_presets
from foretrace.report.glossary import TERMS
from foretrace.server.examples import examples
from foretrace.server.form_fields import MACHINE, SCENARIO, SEARCH, fields_json, input_fields

FAMILIES: Final[Mapping[str, str]] = {
    "compute": "all computation",
    "communication": "all communication",
    "tp": "tensor-parallel communication",
    "cp": "context-parallel communication",
    "ep": "communication of experts",
    "dp": "data-parallel communication",
    "pp": "communication of stages",
    "gemm": "matrix products",
    "attention": "attention kernels",
    "optimizer": "the optimizer",
}
"""Families of ops that a what-if makes faster, by the words of `readings/families.py`, with titles."""

_FACTOR: Final = "2x"
_VALUES: Final = {"power": FIGURES["power"].example, "gpu": "h200-sxm", "cluster": "h200-dgx"}
"""The usual right sides of what-ifs that are not factors."""
_PART_TITLES: Final = {"gpu": "another GPU", "cluster": "another cluster"}
_HOST_TITLES: Final = {
    "cuda-graphs": "no launches (of a profiler trace)",
    "no-host-gaps": "no waits for the host (of a profiler trace)",
    "unprofiled": "without the profiler (of a profiler trace)",
}


def what_ifs() -> list[dict[str, str]]:
    """Returns the left sides of `--what-if`, with titles and the usual right sides; empty for those without one."""
    titles = {
        **FAMILIES,
        **{name: figure.title for name, figure in FIGURES.items()},
        **{name: _PART_TITLES[name] for name in PARTS},
        "batch": "samples of a batch (of a profiler trace)",
        **{name: _HOST_TITLES[name] for name in HOST_WHAT_IFS},
    }
    return [
        {"name": name, "title": title, "value": "" if name in HOST_WHAT_IFS else _VALUES.get(name, _FACTOR)}
        for name, title in titles.items()
    ]


def start_page(upload_bytes: int, files: int) -> dict[str, Any]:
    """Returns what a page needs to begin, as JSON has it.

    Args:
        upload_bytes: The size of an uploaded file at most.
        files: Files of an upload at most.
    """
    models, clusters = model_presets.names(), hardware_presets.names("cluster")
    return {
        "version": __version__,
        "models": [{"name": name, "title": model_presets.model(name).title or name} for name in models],
        "clusters": [{"name": name, "title": hardware_presets.cluster(name).title or name} for name in clusters],
        "examples": [example.to_dict() for example in examples().values()],
        "fields": {kind.kind: fields_json(input_fields(kind)) for kind in kinds() if not kind.runs_code},
        "machine": fields_json(MACHINE.values()),
        "scenario": fields_json(SCENARIO.values()),
        "search": fields_json(SEARCH.values()),
        "what_ifs": what_ifs(),
        "limits": {"upload_bytes": upload_bytes, "upload_text": format_bytes(upload_bytes), "files": files},
        "glossary": dict(TERMS),
    }


def fields_of_kind(name: str) -> list[dict[str, Any]]:
    """Returns the fields of a kind of input, by the name of the kind."""
    return next((fields_json(input_fields(kind)) for kind in kinds() if kind.kind == name), [])
