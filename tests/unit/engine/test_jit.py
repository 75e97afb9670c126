"""Compiled loops are switched on and off for a while, and run whatever the disk does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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


@pytest.mark.skipif(not jit.installed(), reason="numba is not installed")
class TestKeptCode:
    @pytest.fixture
    def code(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Callable[[int], int]]:
        """Returns a function that compiles again, as another process would, with its code kept in `tmp_path`."""
        numba_config = pytest.importorskip("numba.core.config")
        monkeypatch.setattr(numba_config, "CACHE_DIR", str(tmp_path))

        def compiled() -> Callable[[int], int]:
            jit._compiled.pop(_twice, None)
            return jit.compiled(_twice)

        return compiled

    def test_a_full_disk_keeps_nothing(
        self, code: Callable[[], Callable[[int], int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from numba.core import caching

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(caching.IndexDataCacheFile, "save", full)
        assert code()(4) == 8
        assert not list(tmp_path.rglob("*.nbi"))

    @pytest.mark.parametrize("suffix", ["nbi", "nbc"])
    def test_damaged_code_is_compiled_again(
        self, code: Callable[[], Callable[[int], int]], tmp_path: Path, suffix: str
    ) -> None:
        assert code()(4) == 8
        (kept,) = tmp_path.rglob(f"*.{suffix}")
        whole = kept.read_bytes()
        kept.write_bytes(whole[:100])
        assert code()(4) == 8
        assert len(kept.read_bytes()) >= len(whole)


def _twice(number: int) -> int:
    return 2 * number
