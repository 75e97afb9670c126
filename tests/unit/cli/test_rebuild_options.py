"""The options that say how a profile is run: what builds it anew, what it does not hold, which of its steps."""

import pytest

from foretrace.cli.options import Rebuilt, read_rebuilds, read_sizes, read_steps
from foretrace.errors import ForetraceError, UsageError


def test_what_rebuilds_a_trace_is_told_from_what_scales_it():
    chosen, rest = read_rebuilds(["cuda-graphs", "compute=1.1x", "batch=2x", "gpu=h100-sxm", "tp=3x"])
    assert chosen == Rebuilt("graphs", 2.0, "h100-sxm")
    assert rest == ["compute=1.1x", "tp=3x"]


@pytest.mark.parametrize(("word", "host"), [("no-host-gaps", "none"), ("unprofiled", "unprofiled")])
def test_words_for_the_host(word, host):
    assert read_rebuilds([word]) == (Rebuilt(host), [])


@pytest.mark.parametrize(
    "texts",
    [["cuda-graphs=2x"], ["cuda-graphs", "no-host-gaps"], ["batch=much"], ["batch"], ["gpu="], ["gpu=a", "gpu=b"]],
)
def test_contradictions_are_refused(texts):
    with pytest.raises(ForetraceError):
        read_rebuilds(texts)


def test_sizes_keep_their_order_and_refuse_doubles():
    assert read_sizes(["moe.tokens=8192", "params = 2.5e8"]) == (("moe.tokens", "8192"), ("params", "2.5e8"))
    with pytest.raises(UsageError, match="twice"):
        read_sizes(["params=1", "params=2"])
    with pytest.raises(UsageError, match="NAME=VALUE"):
        read_sizes(["params"])


def test_steps_are_single_or_ranges():
    assert read_steps("1, 3-5") == (1, 3, 4, 5)
    assert read_steps(None) is None
    with pytest.raises(UsageError, match="no step"):
        read_steps("last")
