"""Files that are damaged, cut off or something else: said so, in one line."""

from __future__ import annotations

import gzip
import json
import warnings
from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.profiler_trace.format import read_trace
from foretrace.inputs.profiler_trace.format.kineto import read_kineto
from kineto_files import document, small_step, span, write

MANY = [span("cpu_op", f"op {number}", number, 1) for number in range(300)]


def refusal(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert caught.value.exit_code == 3
    assert caught.value.where == str(path)
    return caught.value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("  \n ", "no content"),
        ("hello", "this is no JSON: it begins with 'hello'"),
        ("{}", "no traceEvents"),
        ('{"a": 1, "b": [1, 2]}', "no traceEvents"),
        ('{"traceEvents": []}', "no events"),
        ("[]", "no events"),
        ('{"traceEvents": [{"ph": "M", "name": "thread_name"}]}', "no events"),
        ('{"traceEvents": {"a": 1}}', "no traceEvents"),
        ('{"a" 1}', 'a value of "a" should follow'),
        ("{1: 2}", "a name in quotes should follow"),
        ('{"traceEvents": [{"ph": oops}]}', "event 1 is no JSON"),
        ('{"schema": "1.0.1", "pid": 5, "nodes": [{"id": 1}]}', "a PyTorch execution trace"),
        ("[" * 100_000, "cut off"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"a": [1, oops], "traceEvents": []}', "Expecting value"),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": NaN, "dur": 1, "pid": 1, "tid": 1}]}',
         "no event of the trace has a time"),
    ],
)  # fmt: skip
def test_what_is_no_trace(text: str, said: str, tmp_path: Path) -> None:
    assert said in str(refusal(write(tmp_path, text)))


def test_no_such_file(tmp_path: Path) -> None:
    write(tmp_path, document(small_step()), "trace.json")
    assert "did you mean" in str(refusal(tmp_path / "trace.jsn"))
    assert "folder" in str(refusal(tmp_path))


@pytest.mark.parametrize("indent", [None, 2])
def test_cut_json_says_how_far_it_went(indent: int | None, tmp_path: Path) -> None:
    text = json.dumps(document(MANY), indent=indent)
    message = str(refusal(write(tmp_path, text[: len(text) // 2])))
    count = int(message.split("after ")[1].split(" events")[0])
    assert "cut off" in message
    assert 140 <= count <= 155
    assert "cut off, after 300 events" in str(refusal(write(tmp_path, text[:-1])))


def test_cut_at_every_byte_is_never_read_as_whole(tmp_path: Path) -> None:
    text = json.dumps(document(small_step(), traceName="a"))
    for end in range(1, len(text)):
        refusal(write(tmp_path, text[:end]))


def test_gzip_cut_in_half_and_damaged(tmp_path: Path) -> None:
    data = gzip.compress(json.dumps(document(MANY)).encode())
    path = tmp_path / "trace.json.gz"
    path.write_bytes(data[: len(data) // 2])
    assert "the gzip file is cut off" in str(refusal(path))
    path.write_bytes(data[:-12] + b"\0" * 12)
    assert "the gzip file is" in str(refusal(path))
    path.write_bytes(data[:4])
    assert "the gzip file is cut off" in str(refusal(path))


def test_events_before_a_cut_gzip_are_counted(tmp_path: Path) -> None:
    # Text that does not compress, so that half of the file is half of the events.
    import random

    noise = random.Random(5)
    events = [span("cpu_op", f"{noise.getrandbits(2048):x}", number, 1) for number in range(300)]
    data = gzip.compress(json.dumps(document(events)).encode())
    path = tmp_path / "trace.json.gz"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"cut off .* bytes into its content, after 1\d\d events"):
        read_kineto(path, piece_bytes=4096)


def test_gzip_in_name_only(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_text(json.dumps(document(small_step())))
    trace = read_trace(path)
    assert len(trace.events) == 4
    assert trace.diagnostics[0].code == "odd-input"
    path.write_bytes(b"\x00\x01\x02\x03")
    assert "is no gzip file" in str(refusal(path))
    path.write_bytes(b"\x28\xb5\x2f\xfd1234")
    assert "zstd" in str(refusal(path))


def as_written(name: str) -> str:
    """An event of a Python function whose name was not escaped."""
    return (
        '{\n    "ph": "X", "cat": "python_function", "name": "' + name + '", "pid": 10, "tid": 11,\n'
        '    "ts": 103, "dur": 1,\n    "args": {\n      "Python id": 5\n    }\n  }'
    )


@pytest.mark.parametrize(
    ("name", "read"),
    [
        (r"torch\cuda\__init__.py(219): _lazy_init", r"torch\cuda\__init__.py(219): _lazy_init"),
        ("torch/_inductor/config.py(0): \x01\x1f", "torch/_inductor/config.py(0): \x01\x1f"),
        ('Library("_test", "IMPL")\n(1): <module>', 'Library("_test", "IMPL")\n(1): <module>'),
        (r"C:\users\new", "C:\\users\new"),  # what cannot be told from an escape stays one
    ],
)
@pytest.mark.parametrize("place", [0, 3, 7])
def test_names_that_were_not_escaped(name: str, read: str, place: int, tmp_path: Path) -> None:
    events = [json.dumps(one, indent=2) for one in small_step()]
    events.insert(place, as_written(name))
    if place == 0:
        events.insert(0, events.pop(1))  # the first event must be JSON, or the file is none
    trace = read_trace(write(tmp_path, '{"traceEvents": [\n  ' + ",\n  ".join(events) + '\n], "traceName": "x"}'))
    assert len(trace.events) == 5
    assert read in trace.strings
    assert "1 events are invalid JSON" in trace.diagnostics[0].message


def test_numbers_as_c_prints_them(tmp_path: Path) -> None:
    text = json.dumps(document(small_step()))
    text = text.replace(
        '"correlation": 77, "External id": 2', '"correlation": 77, "a": -inf, "b": nan, "External id": 2'
    )
    trace = read_trace(write(tmp_path, text))
    assert len(trace.events) == 4
    assert trace.diagnostics[0].code == "repaired-input"


def test_a_duration_too_long_for_a_number_is_left_out_without_numpy_saying_so(tmp_path: Path) -> None:
    text = json.dumps(document(small_step())).replace('"dur": 7.5', '"dur": 1e308')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace = read_trace(write(tmp_path, text))
    assert len(trace.events) == 3
    assert [note.code for note in trace.diagnostics] == ["rows-skipped"]


def test_an_event_beyond_repair_is_left_out(tmp_path: Path) -> None:
    events = [json.dumps(one) for one in small_step()]
    events.insert(2, '{"ph": "X", tid": 0, "name": "no quote"}')
    trace = read_trace(write(tmp_path, f'{{"traceEvents": [{", ".join(events)}]}}'))
    assert len(trace.events) == 4
    assert trace.diagnostics[0].level == "warning"
    assert trace.diagnostics[0].code == "rows-skipped"


def test_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    data = json.dumps(document(small_step())).encode().replace(b"sgemm", b"sg\xff\xfemm")
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    trace = read_trace(path)
    assert "sg\ufffd\ufffdmm" in trace.strings
    assert trace.diagnostics[0].code == "not-text"
