"""Operations on arrays that NumPy does not have."""

from __future__ import annotations

import numpy as np

from foretrace.basics.arrays import first_uses


def test_codes_are_numbered_in_the_order_in_which_they_come() -> None:
    first, number = first_uses(np.array([7, 2, 7, 0, 2, 7]))
    assert first.tolist() == [0, 1, 3]
    assert number.tolist() == [0, 1, 0, 2, 1, 0]


def test_no_codes_have_no_numbers() -> None:
    first, number = first_uses(np.empty(0, np.int64))
    assert len(first) == len(number) == 0
