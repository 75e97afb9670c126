"""The options that a plan is written as make the same plan."""

from __future__ import annotations

import shlex
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from foretrace.inputs.model.options import plan_fields, plan_options
from foretrace.inputs.option_texts import INPUT_OPTIONS
from foretrace.workload.plan import OPEN_WORDS, WORD_LISTS, WORDS, Plan

COUNTS = ("mbs", "gbs", "seq_len", "tp", "cp", "pp", "vpp", "ep", "etp", "shard", "prefetch", "recompute_layers")
FLAGS = ("sequence_parallel", "reshard")
SWITCHES = ("fp8_params", "fp8_activation_input", "offload_optimizer", "tp_overlap", "moe_overlap", "pp_overlap")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draws plans that a command line can say, whether a stack runs them or not."""
    fields: dict[str, Any] = {"gpus": draw(st.integers(1, 10**6))}
    fields |= {name: draw(st.integers(1, 10**6)) for name in draw(st.sets(st.sampled_from(COUNTS)))}
    fields |= {name: draw(st.booleans()) for name in draw(st.sets(st.sampled_from(FLAGS)))}
    fields |= dict.fromkeys(draw(st.sets(st.sampled_from(SWITCHES))), True)
    words = WORDS | OPEN_WORDS
    fields |= {name: draw(st.sampled_from(words[name])) for name in draw(st.sets(st.sampled_from(sorted(words))))}
    overlaps = draw(st.none() | st.tuples(st.booleans(), st.booleans()))
    if overlaps is not None:
        fields |= {"grad_overlap": overlaps[0], "param_overlap": overlaps[1]}
    if draw(st.booleans()):
        fields |= {"zero": draw(st.integers(0, 3)), "schedule": "zb-h1", "layout": "Et*4|(t*4|)*14tmL"}
        fields["offload_modules"] = tuple(draw(st.sets(st.sampled_from(WORD_LISTS["offload_modules"]))))
        fields["routing"] = draw(st.floats(1, 100))
    if fields.get("recompute", "none") == "selective":
        fields["recompute_modules"] = tuple(draw(st.sets(st.sampled_from(WORD_LISTS["recompute_modules"]), min_size=1)))
    return Plan(**fields)


def read(options: str) -> dict[str, Any]:
    """Reads options as the command line does."""
    flags: dict[str, tuple[str, Any]] = {}
    for name, option in INPUT_OPTIONS.items():
        positive, _, negative = option.flag.partition("/")
        flags[positive] = (name, None if option.metavar else True)
        if negative:
            flags[negative] = (name, False)
    texts: dict[str, Any] = {}
    words = iter(shlex.split(options))
    for word in words:
        name, value = flags[word]
        texts[name] = next(words) if value is None else value
    return plan_fields(texts)


@given(plans())
def test_options_make_the_plan_that_they_were_written_for(plan: Plan) -> None:
    assert Plan(**read(plan_options(plan))) == plan
