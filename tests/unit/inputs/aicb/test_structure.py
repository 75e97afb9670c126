"""Which rows are microbatches, layers and ends, and what happens once per step."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import InputError
from foretrace.inputs.aicb.format import read_workload
from foretrace.inputs.aicb.microbatches import Structure, find_structure
from shared_files import shared
from unit.inputs.aicb.workloads import lowered, row, workload

EMBEDDING = row("embedding_layer", 1, 1, 1)
ATTENTION, MLP = row("attention_column", 10, 10, 10), row("mlp_row", 20, 20, 20)
HEAD = row("final_column", 3, 3, 3)
LOSS = row("cross_entropy1", 4), row("cross_entropy2", 5)
STEP = row("grad_gather"), row("grad_param_comm"), row("grad_param_compute", 0, 7, 0), row("embedding_grads")
LAYER = [ATTENTION, MLP]


def structure(rows: list[str], **header: int | None) -> Structure:
    return find_structure(workload(rows, **header))


def said(found: Structure) -> list[str]:
    return [f"{one.level} {one.where}: {one.message}" for one in found.diagnostics]


def shape(found: Structure) -> list[tuple[int, list[int], int]]:
    """Rows of the embedding, of each layer and of head and loss, for each microbatch."""
    return [(len(one.embedding), [len(layer) for layer in one.layers], len(one.head)) for one in found.microbatches]


def test_embedding_rows_begin_microbatches() -> None:
    found = structure(
        [*STEP, EMBEDDING, *LAYER, *LAYER, HEAD, EMBEDDING, *LAYER, *LAYER, HEAD, row("optimizer1")], ga=2
    )
    assert shape(found) == [(1, [2, 2], 1), (1, [2, 2], 1)]
    assert [one.name for one in found.step] == [
        "grad_gather",
        "grad_param_comm",
        "grad_param_compute",
        "embedding_grads",
    ]
    assert [one.name for one in found.optimizer] == ["optimizer1"]
    assert found.layers == 2
    assert said(found) == []


def test_numbered_names_are_names() -> None:
    rows = [row("embedding_layer"), row("attention_column_1"), row("mlp_moelayer_1"), row("mlp_moelayer_2")]
    rows += [row("attention_column_2"), row("mlp_moelayer_3"), row("mlp_moelayer_4"), row("final_column")]
    rows += [row("embedding_layer_2"), row("attention_column_3"), row("mlp_moelayer_5"), row("mlp_moelayer_6")]
    rows += [row("attention_column_4"), row("mlp_moelayer_7"), row("mlp_moelayer_8"), row("final_column_2")]
    assert shape(structure(rows, ga=2)) == [(1, [3, 3], 1), (1, [3, 3], 1)]


def test_ga_missing_is_read_off_the_list() -> None:
    found = structure([EMBEDDING, *LAYER] * 3, ga=None)
    assert shape(found) == [(1, [2], 0)] * 3
    assert said(found) == ["note job.txt:1: no ga in the header: 3 microbatches found in the list"]


@pytest.mark.parametrize(
    ("ga", "found", "word"), [(4, 2, "microbatches"), (1, 2, "microbatches"), (2, 1, "microbatch")]
)
def test_ga_that_is_not_the_list(ga: int, found: int, word: str) -> None:
    one = structure([EMBEDDING, *LAYER] * found, ga=ga)
    assert len(one.microbatches) == found
    assert said(one) == [
        f"warning job.txt:1: the header says ga {ga}, the list holds {found} {word}: "
        f"{found} simulated (choose with --microbatches)"
    ]


def test_a_list_without_embedding_rows_in_equal_parts() -> None:
    found = structure([*LAYER, *LAYER] * 3, ga=3)
    assert shape(found) == [(0, [2, 2], 0)] * 3
    assert said(found) == ["note job.txt:1: no embedding rows: the list is 3 equal parts, one for each microbatch"]


def test_equal_parts_and_one_loss() -> None:
    found = structure([*LAYER * 4, *LOSS], ga=2)
    assert shape(found) == [(0, [2, 2], 2)] * 2
    assert [text.split(": ", 1)[1].split(":")[0] for text in said(found)] == [
        "no embedding rows",
        "the loss is listed once for 2 microbatches; it is computed in each",
    ]


@pytest.mark.parametrize(
    "rows",
    [[*LAYER * 3], [*LAYER, *LAYER, ATTENTION, row("mlp_row", 21, 20, 20), *LAYER]],
    ids=["does not divide", "parts differ"],
)
def test_a_list_without_embedding_rows_that_has_no_equal_parts(rows: list[str]) -> None:
    found = structure(rows, ga=2)
    assert len(found.microbatches) == 1
    assert sum(len(layer) for layer in found.microbatches[0].layers) == len(rows)
    assert said(found) == [
        "warning job.txt:1: the header says ga 2, the list holds 1 microbatch: 1 simulated (choose with --microbatches)"
    ]


def test_loss_listed_once_belongs_to_every_microbatch() -> None:
    rows = [EMBEDDING, *LAYER, HEAD, EMBEDDING, *LAYER, HEAD, *LOSS]
    found = structure(rows, ga=2)
    assert shape(found) == [(1, [2], 3)] * 2
    assert said(found) == ["note job.txt:11: the loss is listed once for 2 microbatches; it is computed in each"]
    assert found.microbatches[0].head[1:] == found.microbatches[1].head[1:]


def test_loss_listed_in_each_microbatch_stays_there() -> None:
    found = structure([EMBEDDING, *LAYER, HEAD, *LOSS] * 2, ga=2)
    assert shape(found) == [(1, [2], 3)] * 2
    assert said(found) == []


def test_a_loss_of_one_microbatch_is_its_own() -> None:
    found = structure([EMBEDDING, *LAYER, HEAD, *LOSS], ga=1)
    assert shape(found) == [(1, [2], 3)]
    assert said(found) == []


def test_a_truncated_microbatch_is_taken_as_it_is() -> None:
    found = structure([EMBEDDING, *LAYER * 3, HEAD, EMBEDDING, *LAYER, HEAD], ga=2)
    assert shape(found) == [(1, [2, 2, 2], 1), (1, [2], 1)]
    assert found.layers == 3
    assert said(found) == ["warning job.txt:11: microbatch 1 is cut short: it has 1 of 3 layers; taken as it is"]


def test_a_step_row_after_the_first_layer_is_a_row_of_its_layer() -> None:
    """`layernorm` is a step row only where AICB writes it, before the first microbatch."""
    found = structure([row("layernorm"), ATTENTION, row("layernorm")], ga=1)
    assert len(found.step) == 1
    assert shape(found) == [(0, [2], 0)]


def test_a_file_of_step_rows_alone_is_refused() -> None:
    with pytest.raises(InputError, match=r"^job\.txt:3: no row is a layer") as refused:
        lowered([*STEP, row("optimizer1")])
    assert "attention_column" in str(refused.value.hint)


def test_the_truncated_seed() -> None:
    """Reference 1.5: 8 layers, then a second microbatch of one, although ga is 1; 98 rows, 96 declared."""
    found = find_structure(read_workload(shared("seeds", "002*")))
    assert [len(one.layers) for one in found.microbatches] == [8, 1]
    assert [len(layer) for layer in found.microbatches[0].layers] == [9] * 8
    assert len(found.optimizer) == 4
    assert {one.level for one in found.diagnostics} == {"note", "warning"}


def test_the_seed_of_llama() -> None:
    found = find_structure(read_workload(shared("seeds", "004*")))
    assert shape(found) == [(1, [4] * 8, 4)] * 16


def test_more_microbatches_than_rows_are_not_built() -> None:
    found = structure([*LAYER, *LAYER], ga=10**8)
    assert len(found.microbatches) == 1
    assert "conflicting-values" in {note.code for note in found.diagnostics}


def test_many_short_microbatches_make_few_notes() -> None:
    found = structure([EMBEDDING, *LAYER, *LAYER, *[EMBEDDING, *LAYER] * 100], ga=101)
    assert len(found.microbatches) == 101 and len(found.diagnostics) < 20
