"""The options that say how a profile is run: what builds it anew, what it does not hold, which of its steps."""

import pytest

from foretrace.basics.errors import UsageError
from foretrace.cli.groups import SCENARIO
from foretrace.inputs.option_texts import read_sizes, read_steps, split_what_ifs
from foretrace.inputs.profiler_trace.input import ProfilerTraceInput
from foretrace.inputs.profiler_trace.options import ProfilerTraceOptions
from foretrace.readings.scenario_texts import read_what_ifs


def read_rebuilds(texts):
    """Returns the options of a profiler trace that these what-ifs are, and the what-ifs that are none."""
    options, rest = split_what_ifs(texts)
    return ProfilerTraceInput([]).read_options(options).options, rest


def test_what_rebuilds_a_trace_is_told_from_what_scales_it():
    chosen, rest = read_rebuilds(["cuda-graphs", "compute=1.1x", "batch=2x", "gpu=h100-sxm", "tp=3x"])
    assert chosen == ProfilerTraceOptions(host="graphs", batch=2.0)
    assert rest == ["compute=1.1x", "gpu=h100-sxm", "tp=3x"]


@pytest.mark.parametrize(("word", "host"), [("no-host-gaps", "none"), ("unprofiled", "unprofiled")])
def test_words_for_the_host(word, host):
    assert read_rebuilds([word]) == (ProfilerTraceOptions(host=host), [])


@pytest.mark.parametrize(
    "texts",
    [["cuda-graphs=2x"], ["cuda-graphs", "no-host-gaps"], ["batch=much"], ["batch"]],
)
def test_contradictions_are_refused(texts):
    with pytest.raises(UsageError):
        read_rebuilds(texts)


def test_sizes_keep_their_order_and_refuse_doubles():
    assert read_sizes(["moe.tokens=8192", "params = 2.5e8"]) == (("moe.tokens", "8192"), ("params", "2.5e8"))
    with pytest.raises(UsageError, match="twice"):
        read_sizes(["params=1", "params=2"])
    with pytest.raises(UsageError, match="NAME=VALUE"):
        read_sizes(["params"])


def test_steps_are_single_or_ranges():
    assert read_steps("1, 3-5") == (1, 3, 4, 5)
    with pytest.raises(UsageError, match="not a step"):
        read_steps("last")


@pytest.mark.parametrize("text", ["2-1", "0-", "-1", "1,,2"])
def test_steps_that_go_nowhere_are_refused(text):
    with pytest.raises(UsageError, match="not a step or a range"):
        read_steps(text)


@pytest.mark.parametrize("text", ["gpu=h100-sxm,cuda-graphs", "batch=2x,gpu=h100-sxm", "cuda-graphs,batch=2x"])
def test_several_at_once_are_to_be_repeated(text):
    with pytest.raises(UsageError) as error:
        read_rebuilds([text])
    first, second = text.split(",")
    assert error.value.hint == f"repeat it: --what-if {first} --what-if {second}"


def test_a_misspelt_word_is_guessed():
    with pytest.raises(UsageError, match="did you mean cuda-graphs"):
        read_rebuilds(["cudagraphs"])


def test_the_host_can_be_faster():
    assert read_rebuilds(["host=2x"]) == (ProfilerTraceOptions(), ["host=2x"])


@pytest.mark.parametrize("text", ["batch=0x", "batch=much"])
def test_wrong_values_are_usage(text):
    with pytest.raises(UsageError):
        read_rebuilds([text])


def test_a_gpu_that_is_not_known_is_usage():
    texts = dict.fromkeys(("straggler", "slow_link", "jitter"))
    with pytest.raises(UsageError):
        SCENARIO.read({"what_if": ["gpu=nonsense"], **texts})


@pytest.mark.parametrize("text", ["gemm=0x", "gemm=fast"])
def test_wrong_factors_are_usage(text):
    with pytest.raises(UsageError):
        read_what_ifs([text])


def test_a_share_of_the_speed_is_ambiguous():
    with pytest.raises(UsageError) as error:
        read_what_ifs(["gemm=20%"])
    assert error.value.hint == "20 % faster is 1.2x; 20 % as fast is 0.2x"
    assert read_what_ifs(["gemm=120%", "attention=0.2x"]) == {"gemm": 1.2, "attention": 0.2}
