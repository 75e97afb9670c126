"""Compiled loops are switched on and off for a while."""

from __future__ import annotations

import pytest

from foretrace.engine import jit


def test_a_switch_is_undone_when_the_jobs_are_done() -> None:
    expected = jit.pays(1)
    with jit.using(True):
        assert jit.pays(1) == jit.installed()
        with jit.using(False):
            assert not jit.pays(1 << 40)
        assert jit.pays(1) == jit.installed()
    assert jit.pays(1) == expected


def test_a_switch_is_undone_after_an_error() -> None:
    expected = jit.pays(1 << 40)
    with pytest.raises(ValueError, match="job"), jit.using(False):
        raise ValueError("job")
    assert jit.pays(1 << 40) == expected
