"""Jobs as YAML: a model, a plan and a cluster in one file, read with lines in errors and written with comments.

```yaml
model: llama3-70b        # or a mapping: see foretrace.models.spec
plan: {gpus: 512, tp: 4, pp: 4, gbs: 1024}
cluster: h100-dgx
```
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from foretrace.basics.documents import Document, Fields
from foretrace.basics.errors import Diagnostic, InputError, did_you_mean
from foretrace.basics.file_registry import record_named_input
from foretrace.basics.files import AnyFile, given_path, input_file
from foretrace.basics.units import parse_count, parse_factor, parse_tokens
from foretrace.models import presets
from foretrace.models.model import Model
from foretrace.models.spec import number, read_model_spec, word
from foretrace.workload.plan import OPEN_WORDS, WORD_LISTS, WORDS

PlanValue: TypeAlias = "int | float | str | bool | tuple[int, ...] | tuple[str, ...]"

EXAMPLE: Final = "plan: {gpus: 512, tp: 4, pp: 4, gbs: 1024}"
_COUNTS: Final[dict[str, int]] = {
    **dict.fromkeys(("gpus", "mbs", "gbs", "seq_len", "tp", "cp", "pp", "vpp", "ep", "etp", "shard"), 1),
    **dict.fromkeys(("zero", "prefetch", "recompute_layers", "offload_layers"), 0),
    **dict.fromkeys(("first_stage_layers", "last_stage_layers"), 0),
}
"""Fields that are whole numbers, with the least each may be."""
_FLAGS: Final = (
    *("sequence_parallel", "reshard", "grad_overlap", "param_overlap", "tp_overlap", "moe_overlap", "pp_overlap"),
    *("offload_optimizer", "fp8_params", "fp8_activation_input"),
)
_LISTS: Final = ("stage_layers", "documents")
_TEXTS: Final = ("schedule", "stack", "rank_order", "layout")
_WORDS: Final = WORDS | OPEN_WORDS
PLAN_KEYS: Final = (*_COUNTS, *_FLAGS, *_WORDS, *WORD_LISTS, *_LISTS, *_TEXTS, "routing")
OLDER_KEYS: Final = ("deepep",)
"""`deepep: yes` is an older word for `dispatcher: deepep`."""
MAX_VALUE: Final = 10**9


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job as its file describes it; `plan_fields` are the fields of `Plan` that the file gives."""

    model: Model
    plan_fields: dict[str, PlanValue]
    cluster: str | None
    diagnostics: tuple[Diagnostic, ...] = ()


def read_job(path: AnyFile) -> JobFile:
    """Reads the job that a file describes. A path to a cluster's file is taken from where the job's file stands."""
    expected = f"expected a job in YAML: model: llama3-70b, {EXAMPLE}"
    document = Document(str(path), "job", expected, EXAMPLE, source=input_file(path))
    root = document.fields(document.compose(document.read()), ("model", "plan", "cluster"), ("model",))
    model = read_model_spec(document, root["model"], presets.model, name=Path(path).stem)
    plan: dict[str, PlanValue] = {}
    if "plan" in root:
        plan = _read_plan(document.fields(root["plan"], (*PLAN_KEYS, *OLDER_KEYS), (), "a mapping of a plan's fields"))
    cluster = None
    if "cluster" in root:
        speaking = replace(document, example="cluster: h100-dgx")
        cluster = " ".join(speaking.text(root["cluster"], "cluster: a name or a file").split())
        file = Path(path).parent / cluster
        if file.suffix in (".yaml", ".yml", ".json") and given_path(file).is_file:
            record_named_input(file)
            cluster = str(file)
    return JobFile(model, plan, cluster)


def _read_plan(fields: Fields) -> dict[str, PlanValue]:
    plan: dict[str, PlanValue] = {}
    for name in fields.values:
        if name in _COUNTS:
            most = 3 if name == "zero" else MAX_VALUE
            plan[name] = number(fields, name, least=_COUNTS[name], most=most)
        elif name in _FLAGS:
            plan[name] = fields.flag(name, False)
        elif name in _WORDS:
            plan[name] = word(fields, name, "", _WORDS[name])
        elif name in WORD_LISTS:
            plan[name] = _words(fields, name)
        elif name in _LISTS:
            plan[name] = _whole_numbers(fields, name)
        elif name == "routing":
            plan[name] = _routing(fields)
        elif name in OLDER_KEYS:
            if fields.flag(name, False) and "dispatcher" not in fields:
                plan["dispatcher"] = "deepep"
        else:
            plan[name] = fields.text(name, "")
    return plan


def _routing(fields: Fields) -> float:
    text = fields.text("routing", "balanced")
    factor = 1.0 if text.lower() == "balanced" else parse_factor(text, where=fields.where("routing"))
    if factor < 1:
        hint = "the busiest expert rank over the mean: balanced, or e.g. 1.5x"
        raise InputError(
            "out-of-range", f"routing {text} is less than the mean", where=fields.where("routing"), hint=hint
        )
    return factor


def _words(fields: Fields, name: str) -> tuple[str, ...]:
    """A list of known words, or one text of them: `mlp,layernorm`."""
    words = tuple(part.strip() for text in fields.texts(name) for part in text.split(",") if part.strip())
    for part in words:
        if part not in WORD_LISTS[name]:
            problem = f'{name} "{part}" is not known{did_you_mean(part, WORD_LISTS[name])}'
            hint = f"known: {', '.join(WORD_LISTS[name])}"
            raise InputError("unknown-name", problem, where=fields.where(name), hint=hint)
    return words


def _whole_numbers(fields: Fields, name: str) -> tuple[int, ...]:
    """A list of whole numbers, or one text of them: `20,20,22`."""
    parse, least = (parse_count, 0) if name == "stage_layers" else (parse_tokens, 1)
    try:
        numbers = tuple(parse(part) for text in fields.texts(name) for part in text.split(","))
    except InputError:
        numbers = ()
    if not numbers or not all(least <= value <= MAX_VALUE for value in numbers):
        problem = f"{name}: expected whole numbers from {least} on"
        raise InputError("bad-value", problem, where=fields.where(name), hint=f"{name}: [20, 20]")
    return numbers
