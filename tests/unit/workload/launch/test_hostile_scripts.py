"""Scripts that were cut off, made to grow, or are not scripts: an answer or one error, in linear time."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.workload.launch.read_launch import read_launch

GPT = (
    "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 "
    "--max-position-embeddings 128 --vocab-size 100 --micro-batch-size 1 --global-batch-size 2 "
)


def script(tmp_path: Path, text: str | bytes, name: str = "run.sh") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("\\", "wrong-format"),
        ("run \\\r", "wrong-format"),
        ('A="x x"\n' + 'A="$A $A"\n' * 60 + GPT + "$A", "input-too-large"),
        ("A=(a b)\n" + 'A+=("${A[@]}" "${A[@]}")\n' * 60 + GPT, "input-too-large"),
        (GPT + "--num-experts 4 --moe-layer-freq '(" + "+".join(["[0,1]*99999"] * 5000) + ")'", "bad-value"),
        (GPT + "--num-experts 4 --moe-layer-freq " + "9" * 5000, "bad-value"),
        (GPT + "--hidden-dropout nan", "out-of-range"),
        (GPT + "--hidden-dropout 7", "out-of-range"),
        (GPT + "--hidden-size ٦٤", "bad-value"),
        (GPT + "--seq-length 1 024", "bad-value"),
        (GPT + "--seq-length 1\u202f024", "bad-value"),
        (GPT + "--seq-length 1k", "bad-value"),
        ("run model.num_layers=4 model.hidden_size=1 024", "bad-value"),
        ("run -m torchtitan.train --module llama3 --config llama3_8b --training.seq_len=4 096", "bad-value"),
        (GPT + "--num-layers " + "9" * 5000, "out-of-range"),
        (GPT + "--normalization odd", "unknown-name"),
        ("echo don't\n" + "run", "bad-syntax"),
        (GPT.encode("utf-16"), "wrong-format"),
        (GPT + "\0", "wrong-format"),
        (" " * 1_100_000, "input-too-large"),
    ],
)
def test_refused_scripts(text: str | bytes, code: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read_launch(script(tmp_path, text))
    assert refused.value.code == code
    assert str(tmp_path) in (refused.value.where or "")


@pytest.mark.parametrize(
    "text",
    [
        GPT + "\\",
        GPT + "--seq-length 128 2>&1 | tee log",
        GPT + "--seq-length 1_024",
        "\ufeff" + GPT,
        GPT + "--mtp-num-layers $((" + "999999999999*" * 400 + "9))",
        "A=$((" + " " * 100_000 + "\n" + GPT,
        "A+=x\n" * 20_000 + GPT,
        "A=1 " * 20_000 + GPT,
    ],
)
def test_odd_scripts_are_read(text: str, tmp_path: Path) -> None:
    assert len(read_launch(script(tmp_path, text)).model.layers) == 4


def test_remarks_of_one_kind_are_few(tmp_path: Path) -> None:
    text = "".join(f"A={number}\n" for number in range(2_000)) + GPT
    notes = [note for note in read_launch(script(tmp_path, text)).diagnostics if note.code == "duplicate-name"]
    assert 1 <= len(notes) <= 5
    assert "1,99" in notes[-1].message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.toml", "[model]\na" + ".b" * 50_000 + "=1"),
        ("t.toml", "[model]\na=" + "[" * 50_000),
        ("d.json", "{zero_optimization: &a {x: *a}}"),
        (
            "d.json",
            "{a0: &a0 [1, 1], " + ", ".join(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}" for n in range(1, 40)) + "}",
        ),
    ],
)
def test_nesting_without_end(name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read_launch(script(tmp_path, text, name))
    assert str(tmp_path) in (refused.value.where or "")


def test_the_wrong_value_names_its_option(tmp_path: Path) -> None:
    for name in ("hidden-size", "micro-batch-size", "tensor-model-parallel-size"):
        with pytest.raises(InputError) as refused:
            read_launch(script(tmp_path, f"{GPT} --{name} -8"))
        assert f"--{name}" in refused.value.message


def test_another_value_of_an_option_is_reported(tmp_path: Path) -> None:
    once = read_launch(script(tmp_path, f"{GPT} --num-layers 4\n{GPT}"))
    assert not [note for note in once.diagnostics if note.code == "duplicate-name"]
    twice = read_launch(script(tmp_path, f"{GPT}\n{GPT} --num-layers 8 --tee 1 --tee 2"))
    assert len(twice.model.layers) == 8
    notes = [note for note in twice.diagnostics if note.code == "duplicate-name"]
    assert [note.level for note in notes] == ["warning"]
    assert "--num-layers" in notes[0].message


def test_octal_numbers_are_not_taken_as_decimal_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read_launch(script(tmp_path, f"N=$((010*1))\n{GPT} --num-layers $N"))
    assert refused.value.code == "unset-variable"
