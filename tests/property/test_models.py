"""Laws of models: what is written reads the same, ranks hold no less than their share, more work is never less."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from foretrace.basics.errors import ForetraceError
from foretrace.models.compose import compose_layers
from foretrace.models.flops import attention_pairs, forward_flops
from foretrace.models.model import Experts, LatentAttention, Mlp, Model, SelfAttention
from foretrace.models.parameters import active_parameters, layer_parameters, norm_parameters, parameters
from foretrace.models.ranges import format_ranges, parse_ranges
from foretrace.models.write_spec import model_spec
from foretrace.workload.job_file import read_job
from foretrace.workload.launch.read_launch import read_launch
from foretrace.workload.launch.shell_words import read_script
from foretrace.workload.write_job import JobDraft, job_text

SMALL = st.integers(1, 8)


@st.composite
def mlps(draw: st.DrawFn) -> Mlp:
    activation = draw(st.sampled_from(["gelu", "relu", "relu2", "silu"]))
    return Mlp(8 * draw(SMALL), draw(st.booleans()), activation, draw(st.booleans()))  # type: ignore[arg-type]


@st.composite
def attentions(draw: st.DrawFn) -> SelfAttention | LatentAttention:
    kv_heads = draw(st.sampled_from([1, 2, 4, 8]))
    if draw(st.booleans()):
        rank = draw(st.none() | SMALL)
        return LatentAttention(8 * draw(SMALL), rank, draw(SMALL), draw(SMALL), draw(SMALL), draw(SMALL))
    flags = {name: draw(st.booleans()) for name in ("qkv_bias", "out_bias", "qk_norm", "sinks", "output_gate", "rope")}
    return SelfAttention(8 * draw(SMALL), kv_heads, draw(SMALL), window=draw(st.none() | SMALL), **flags)


@st.composite
def models(draw: st.DrawFn) -> Model:
    count, mlp = draw(SMALL), draw(mlps())
    numbers = st.frozensets(st.integers(0, count - 1))
    experts = None
    if draw(st.booleans()):
        some = draw(SMALL)
        shared = draw(st.none() | st.builds(replace, st.just(mlp), ffn=SMALL))
        flags = (draw(st.booleans()), draw(st.booleans()))
        experts = Experts(8 * some, draw(st.integers(1, 8 * some)), mlp, shared, *flags)
    layers = compose_layers(
        *(count, draw(attentions()), mlp, experts),
        dense=draw(numbers),
        unlimited=draw(numbers),
        without_rope=draw(numbers),
    )
    norm = draw(st.sampled_from(["rmsnorm", "layernorm"]))
    return Model(
        *("mine", 8 * draw(SMALL), layers, 8 * draw(SMALL), norm, draw(st.booleans())),
        norm_bias=norm == "rmsnorm" or draw(st.booleans()),
        positions=draw(st.integers(0, 3)),
        position_kind=draw(st.sampled_from(["rope", "learned", "alibi", "none"])),
        head_bias=draw(st.booleans()),
        mtp=draw(st.integers(0, 2)),
        dropout=draw(st.booleans()),
        title="mine",
    )


@given(model=models())
def test_what_is_written_reads_the_same(model: Model, tmp_path_factory: object) -> None:
    path = Path(tmp_path_factory.mktemp("job")) / "job.yaml"  # type: ignore[attr-defined]
    path.write_text(job_text(JobDraft(model_spec(model), {}, None, "a test")), encoding="utf-8")
    assert read_job(path).model == model


@given(model=models(), tp=st.sampled_from([1, 2, 4, 8]), ep=st.sampled_from([1, 2, 4, 8]))
def test_ranks_together_hold_at_least_the_layer(model: Model, tp: int, ep: int) -> None:
    norm = norm_parameters(model)
    for layer in set(model.layers):
        whole = layer_parameters(layer, model.hidden, norm)
        part = layer_parameters(layer, model.hidden, norm, tp=tp, ep=ep)
        assert part.dense * tp >= whole.dense >= part.dense
        assert part.experts * ep == whole.experts


@given(model=models())
def test_a_token_meets_no_more_than_there_is(model: Model) -> None:
    assert 0 < active_parameters(model) <= parameters(model)


@given(model=models(), short=st.integers(1, 200), more=st.integers(0, 200))
def test_longer_sequences_are_more_work(model: Model, short: int, more: int) -> None:
    less, whole = forward_flops(model, short), forward_flops(model, short + more)
    assert less.linear <= whole.linear
    assert less.attention <= whole.attention
    packed = forward_flops(model, short + more, documents=[short, more] if more else [short])
    assert packed.attention <= whole.attention * (1 + 1e-12)


@given(length=st.integers(1, 10_000), window=st.integers(1, 10_000))
def test_a_window_sees_no_more_than_all(length: int, window: int) -> None:
    assert 0 < attention_pairs(length, window) <= attention_pairs(length, None)


@given(numbers=st.frozensets(st.integers(0, 99), min_size=1))
def test_ranges_read_as_they_are_written(numbers: frozenset[int]) -> None:
    assert parse_ranges(format_ranges(numbers), 100) == numbers


SCRIPTS = st.lists(
    st.sampled_from(
        [
            *("--num-layers", "--hidden-size", "--moe-layer-freq", "--num-experts", "4", "$A", "${A[@]}", "${B:-3}"),
            *("$((A*2))", "A=(", ")", "A=", 'A="', '"', "'", "\n", "\\\n", " ", "#", "if", "fi", ";", "$(", "`", "1e9"),
        ]
    )
    | st.text(max_size=3),
    max_size=40,
).map(" ".join)


@given(text=SCRIPTS)
def test_any_text_is_read_without_running_wild(text: str) -> None:
    script = read_script(text, "x.sh")
    last = text.count("\n") + 1
    assert all(1 <= word.line <= last for words in script.commands for word in words)


@given(text=SCRIPTS)
def test_any_script_is_read_or_refused(text: str, tmp_path_factory: object) -> None:
    path = Path(tmp_path_factory.mktemp("script")) / "train.sh"  # type: ignore[attr-defined]
    path.write_text(text, encoding="utf-8")
    try:
        read_launch(path)
    except ForetraceError as refused:
        assert refused.exit_code == 3
