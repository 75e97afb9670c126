"""Reads the ranges that PyTorch and its users mark: their names, and the phase of a step that a name tells."""

from __future__ import annotations

import re
from typing import Final

from foretrace.program.columns import Phase

PROFILER_STEP: Final = "ProfilerStep"
"""How `torch.profiler` calls a step: ProfilerStep#3."""
OPTIMIZER_STEP: Final = "Optimizer.step#"
"""How PyTorch calls an optimizer's step: Optimizer.step#AdamW.step."""
ENGINE: Final = "autograd::engine::evaluate_function: "
"""What autograd's engine writes before the name of a node of the backward that it runs."""

_GRADIENTS: Final = (
    r"(reduce|multiply|clip|scale|unscale|sync)[-_ ]?grad(s|ients)?|(clip_)?grad[-_ ]?norm|zero[-_ ]?grad"
)
"""What is done to gradients between backward and update."""


def _compiled(*rows: tuple[Phase, str]) -> tuple[tuple[Phase, re.Pattern[str]], ...]:
    return tuple((phase, re.compile(pattern, re.IGNORECASE)) for phase, pattern in rows)


_WHOLE: Final = _compiled(
    (Phase.FORWARD, r"(.*[-_. ])?(forward|fwd)([-_ ]?(pass|step))?"),
    (Phase.BACKWARD, r"(.*[-_. ])?(backward|bwd)([-_ ]?(pass|step))?"),
    (Phase.OPTIMIZER, rf"optim(izer)?([-_. ]?(step|zero_grad))?(#.*)?|({_GRADIENTS}).*"),
)
_PART: Final = _compiled(
    (Phase.OPTIMIZER, rf"optimizer|adamw?\b|{_GRADIENTS}"),
    (Phase.BACKWARD, r"(?<![a-z])(backward|bwd)(?![a-z])"),
    (Phase.FORWARD, r"(?<![a-z])(forward|fwd)(?![a-z])"),
)


def whole_phase(name: str) -> Phase:
    """The phase that a range is all of; NONE where it is a part of one (FORWARD_EMBEDDING) or of none."""
    return next((phase for phase, pattern in _WHOLE if pattern.fullmatch(name)), Phase.NONE)


def phase_within(name: str) -> Phase:
    """The phase that a range lies in, by a word of its name; NONE where it has none."""
    return next((phase for phase, pattern in _PART if pattern.search(name)), Phase.NONE)
