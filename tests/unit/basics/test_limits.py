from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from foretrace.basics.errors import ForetraceError, InputError
from foretrace.basics.files import read_whole, unpack
from foretrace.basics.limits import Deadline, check_limit, limit_factor


def test_a_user_raises_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(b"x" * 30)
    with pytest.raises(InputError) as caught:
        read_whole(file, "script", "expected a script", 10)
    assert caught.value.code == "input-too-large"
    monkeypatch.setenv("FORETRACE_LIMITS", "3x")
    assert len(read_whole(file, "script", "expected a script", 10)) == 30


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "x", "1e99", "two", "9" * 5000])
def test_factors_that_are_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("FORETRACE_LIMITS", text)
    with pytest.raises(ForetraceError, match="bad-value") as caught:
        limit_factor()
    assert f'"{text[:50]}' in caught.value.message


def test_a_packed_file_has_a_limit() -> None:
    packed = gzip.compress(b"\0" * 1_000_000)
    assert len(unpack(packed, "trace", "t.gz", 1_000_000)) == 1_000_000
    for data, most, code in ((packed, 999, "input-too-large"), (packed[:-9], 2_000_000, "truncated-file")):
        with pytest.raises(InputError) as caught:
            unpack(data, "trace", "t.gz", most)
        assert caught.value.code == code


def test_deadlines_and_counts() -> None:
    Deadline(60, "reading").check()
    with pytest.raises(InputError) as caught:
        Deadline(-1, "reading").check()
    assert caught.value.code == "gave-up"
    with pytest.raises(InputError) as caught:
        check_limit(11, 10, "lines", None)
    assert caught.value.code == "input-too-large"
