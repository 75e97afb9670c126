"""Over which ranks a collective runs: by its suffix and the pass it is in."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import InputError
from unit.inputs.aicb.workloads import Op, listed, lowered, row

HEADER = {"tp": 2, "ep": 2, "all_gpus": 8}
"""tp 2, dp 4, ep 2 and so two replicas of each expert."""

AXES = {
    "": {"forward": "tp", "input_grad": "tp", "weight_grad": "dp"},
    "_EP": {"forward": "ep", "input_grad": "ep", "weight_grad": "ep"},
    "_DP_EP": {"forward": "edp", "input_grad": "edp", "weight_grad": "edp"},
}
WORDS = {
    "ALLREDUCE": "all_reduce",
    "ALLGATHER": "all_gather",
    "REDUCESCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
}


def calls(rows: list[str], **header: int) -> list[Op]:
    return [op for op in listed(lowered(rows, **(HEADER | header))) if op.axis]


@pytest.mark.parametrize("which", ["forward", "input_grad", "weight_grad"])
@pytest.mark.parametrize("suffix", list(AXES))
@pytest.mark.parametrize("word", list(WORDS))
def test_the_group_of_every_collective(word: str, suffix: str, which: str) -> None:
    (call,) = calls([row("attention_layer", **{which: (10, word + suffix, 4096)})])
    assert (call.axis, call.collective, call.bytes) == (AXES[suffix][which], WORDS[word], 4096)
    assert call.name == f"attention_layer {WORDS[word]}"
    assert call.phase == ("forward" if which == "forward" else "backward")


def test_the_ranks_of_each_group() -> None:
    """Megatron's order: tp fastest, then ep within dp."""
    used = [("ALLREDUCE", ""), ("ALLREDUCE", "_EP"), ("ALLREDUCE", "_DP_EP")]
    rows = [row("attention_layer", (1, word + suffix, 8), 1, (1, word, 8)) for word, suffix in used]
    program = lowered(rows, **HEADER)
    groups = {one.axis: one.members(program.mesh)[0].tolist() for one in program.communicators if one.axis != "pp"}
    assert groups["tp"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert sorted(groups["dp"]) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert sorted(groups["ep"]) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert sorted(groups["edp"]) == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize("spelled", ["allreduce", "AllReduce", "ALLREDUCE"])
def test_case_does_not_matter(spelled: str) -> None:
    (call,) = calls([row("attention_layer", (1, spelled, 8))])
    assert call.collective == "all_reduce"


@pytest.mark.parametrize(
    "part",
    [(5, "ALLREDUCE", 0), (5, "NONE", 4096), (5, "NONE", 0)],
    ids=["0 bytes", "stray size", "none"],
)
def test_nothing_is_sent(part: tuple[int, str, int]) -> None:
    rows = [row("attention_layer", part)]
    assert calls(rows) == []
    assert [op.seconds for op in listed(lowered(rows, **HEADER)) if op.phase == "forward"] == [5e-9]


@pytest.mark.parametrize(
    ("collective", "which", "header"),
    [
        ("ALLREDUCE", "forward", {"tp": 1}),
        ("ALLREDUCE", "weight_grad", {"all_gpus": 2, "ep": 1}),
        ("ALLTOALL_EP", "forward", {"ep": 1}),
        ("ALLREDUCE_DP_EP", "weight_grad", {"ep": 4}),
    ],
)
def test_a_group_of_one_sends_nothing(collective: str, which: str, header: dict[str, int]) -> None:
    assert calls([row("attention_layer", **{which: (10, collective, 4096)})], **header) == []


@pytest.mark.parametrize(
    ("written", "meant"),
    [("ALLGETHER", "ALLGATHER"), ("ALLGETHER_EP", "ALLGATHER_EP"), ("ALLTOAL_DP_EP", "ALLTOALL_DP_EP")],
)
@pytest.mark.parametrize("which", ["forward", "input_grad", "weight_grad"])
def test_an_unknown_collective_in_the_words_of_the_manual(written: str, meant: str, which: str) -> None:
    rows = [row("embedding_layer"), row("attention_layer"), row("mlp_layer", **{which: (1, written, 8)})]
    with pytest.raises(InputError) as refused:
        lowered(rows, **HEADER)
    assert str(refused.value).splitlines() == [
        f'job.txt:5: collective "{written}" is not known; did you mean {meant}?  [unknown-collective]',
        "       known: NONE ALLREDUCE ALLGATHER REDUCESCATTER ALLTOALL, with suffix _EP or _DP_EP",
    ]


@pytest.mark.parametrize("name", ["grad_gather", "optimizer1", "embedding_layer", "final_column", "cross_entropy1"])
def test_an_unknown_collective_is_found_in_every_kind_of_row(name: str) -> None:
    first = name in ("grad_gather", "embedding_layer")
    rows = [row(name, (1, "QUUX", 8)), row("attention_layer")]
    with pytest.raises(InputError) as refused:
        lowered(rows if first else rows[::-1], **HEADER)
    assert (refused.value.code, refused.value.where) == ("unknown-collective", f"job.txt:{3 if first else 4}")
    assert refused.value.message == 'collective "QUUX" is not known'
    assert "known: NONE" in str(refused.value.hint)


def test_both_at_once_is_known_to_simai_alone() -> None:
    with pytest.raises(InputError, match='collective "ALLREDUCEALLTOALL" is not known; did you mean ALL'):
        lowered([row("attention_layer", (1, "ALLREDUCEALLTOALL", 8))], **HEADER)
