"""Maps what a plan recomputes and moves to the host to the arguments of Megatron-LM, in both directions."""

from __future__ import annotations

from typing import Final

from foretrace.workload.job_file import PlanValue
from foretrace.workload.launch.rules import Options, Reading, Rule
from foretrace.workload.plan import WORD_LISTS
from foretrace.workload.setting import Setting


def _write_recompute(setting: Setting) -> Options:
    plan = setting.plan
    full, part = plan.recompute == "full", plan.recompute_layers
    method = "uniform" if part is None else "block"
    return {
        "recompute-granularity": plan.recompute if plan.recompute != "none" else None,
        "recompute-method": method if full else None,
        "recompute-num-layers": (1 if part is None else part) if full else None,
        "recompute-modules": (plan.recompute_modules if plan.recompute == "selective" else None) or None,
    }


def _lack_of_recompute(setting: Setting) -> str | None:
    plan = setting.plan
    if plan.recompute == "full" and plan.recompute_layers == 0:
        return "Megatron-LM recomputes at least one layer of a stage"
    empty = plan.recompute == "selective" and plan.recompute_modules == ()
    return "Megatron-LM recomputes at least one module" if empty else None


def _read_recompute(reading: Reading) -> dict[str, PlanValue]:
    """Returns what a plan recomputes: whole layers, those of a block, or parts of all."""
    usual = "selective" if reading.has("recompute-activations") else "none"
    granularity = reading.word("recompute-granularity", usual, ("none", "selective", "full"))
    plan: dict[str, PlanValue] = {"recompute": granularity}
    count, name = reading.count("recompute-num-layers", 1), reading.args.shown("recompute-num-layers")
    if granularity == "full" and reading.text("recompute-method", "") == "block":
        plan["recompute_layers"] = count
    elif granularity == "full" and count > 1:
        text = f"{name} {count}: layers are recomputed one by one here, not {count} at a time"
        reading.say("not-modelled", text, "recompute-num-layers")
    needed = f"{reading.args.shown('recompute-granularity')} selective"
    modules = _modules(reading, "recompute_modules", granularity == "selective", needed)
    if modules:
        plan["recompute_modules"] = modules
    elif modules is not None:
        plan["recompute"] = "none"
    return plan


def _modules(reading: Reading, field: str, used: bool, needed: str) -> tuple[str, ...] | None:
    """Returns the modules that an option names and a plan has; None where Megatron does not look at them.

    Args:
        reading: The script.
        field: The field of a plan, whose option has the same name.
        used: Whether Megatron looks at the option.
        needed: The option without which it does not.
    """
    option = field.replace("_", "-")
    shown = reading.args.shown(option)
    if not (given := reading.values(option)):
        return None
    if not used:
        reading.say("field-ignored", f"{shown} has no effect without {needed}", option)
        return None
    others = [module for module in given if module not in WORD_LISTS[field]]
    if others:
        reading.say("not-modelled", f"{shown}: {', '.join(others)} is not modelled; left out", option)
    return tuple(module for module in WORD_LISTS[field] if module in given)


def _write_offload(setting: Setting) -> Options:
    modules = setting.plan.offload_modules
    return {"fine-grained-activation-offloading": bool(modules), "offload-modules": modules or None}


def _read_offload(reading: Reading) -> dict[str, PlanValue]:
    enabled = "fine-grained-activation-offloading"
    modules = _modules(reading, "offload_modules", reading.has(enabled), reading.args.shown(enabled))
    return {"offload_modules": modules} if modules else {}


def _read_offload_optimizer(reading: Reading) -> dict[str, PlanValue]:
    fraction = "optimizer-offload-fraction"
    if not reading.has("optimizer-cpu-offload"):
        return {}
    if reading.text(fraction, "1.0") not in ("1", "1.0"):
        text = f"{reading.args.shown(fraction)}: all of the optimizer's state is taken to be on the host"
        reading.say("not-modelled", text, fraction)
    return {"offload_optimizer": True}


RECOMPUTE: Final = Rule(
    ("recompute", "recompute_layers", "recompute_modules"), _write_recompute, _read_recompute, _lack_of_recompute
)
OFFLOAD_MODULES: Final = Rule(("offload_modules",), _write_offload, _read_offload)
OFFLOAD_OPTIMIZER: Final = Rule(
    ("offload_optimizer",),
    lambda setting: {"optimizer-cpu-offload": setting.plan.offload_optimizer},
    _read_offload_optimizer,
)
