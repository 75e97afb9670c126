"""Compares measured kernels with the kernel model, family by family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from foretrace.basics.arrays import Floats
from foretrace.cost.calibration import FamilyFit
from foretrace.cost.kernels.corrections import Family, MeasuredCorrections, family
from foretrace.program.kernels import Kernel

_NINE_IN_TEN: Final = (0.05, 0.95)
_WORDS: Final = {True: "backward", False: "forward"}


def family_fits(kernels: Sequence[Kernel], seconds: Floats, modelled: Floats) -> tuple[FamilyFit, ...]:
    """A fit for each family, the one with most time first."""
    members: dict[Family, list[int]] = {}
    for i, kernel in enumerate(kernels):
        members.setdefault(family(kernel), []).append(i)
    by_time = sorted(members.items(), key=lambda item: -float(seconds[item[1]].sum()))
    return tuple(_fit(name, [kernels[i] for i in rows], seconds[rows], modelled[rows]) for name, rows in by_time)


def _fit(name: Family, kernels: Sequence[Kernel], seconds: Floats, modelled: Floats) -> FamilyFit:
    ratio = np.log(seconds / modelled)
    low, high = np.quantile(ratio, _NINE_IN_TEN)
    return FamilyFit(
        family_name(name),
        len(kernels),
        float(np.exp(ratio.mean())),
        float(np.exp(low)),
        float(np.exp(high)),
        _left_out(kernels, seconds, modelled),
    )


def family_name(name: Family) -> str:
    """A family in words: `gemm bf16 tn`, `attention bf16 cudnn backward`."""
    words = [_WORDS[part] if isinstance(part, bool) and name[0] == "attention" else part for part in name]
    return " ".join(str(word) for word in words if not isinstance(word, bool))


def _left_out(kernels: Sequence[Kernel], seconds: Floats, modelled: Floats) -> float:
    """How far nine in ten kernels are off when each is priced by the others; of one alone, how far the model is."""
    if len(kernels) == 1:
        return float(abs(np.log(seconds[0] / modelled[0])))
    errors = []
    for i in range(len(kernels)):
        rest = np.array([j for j in range(len(kernels)) if j != i])
        others = MeasuredCorrections([kernels[j] for j in rest], seconds[rest], modelled[rest])
        factor = others.correction([kernels[i]]).factor[0]
        errors.append(abs(float(np.log(seconds[i] / (modelled[i] * factor)))))
    return float(np.quantile(errors, _NINE_IN_TEN[1]))
