"""Launch scripts: options with their lines, variables followed as text, nothing run."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.workload.launch.arguments import Arguments, script_arguments, script_of
from foretrace.workload.launch.read_launch import read_launch
from foretrace.workload.launch.shell_words import read_script


def read(tmp_path: Path, text: str) -> Arguments:
    path = tmp_path / "train.sh"
    path.write_text(text, encoding="utf-8")
    return script_arguments(script_of(path.read_text(encoding="utf-8"), str(path)))


def test_a_file_of_arguments(tmp_path: Path) -> None:
    args = read(tmp_path, "--num-layers 32\n--hidden_size=4096   # wide\n--swiglu\n--data-path 0.5 a 0.5 b\n")
    assert (args.count("num-layers"), args.count("hidden-size")) == (32, 4096)
    assert args.where("hidden-size") == f"{tmp_path / 'train.sh'}:2"
    assert "swiglu" in args
    assert args.options["data-path"].values == ("0.5", "a", "0.5", "b")


@pytest.mark.parametrize(
    "text",
    [
        "N=8\ntorchrun p.py --num-layers $N",
        'N=8\ntorchrun p.py --num-layers "${N}"',
        "torchrun p.py --num-layers ${N:-8}",
        "torchrun p.py --num-layers ${N-8}",
        "A=2; B=4\ntorchrun p.py --num-layers $((A * B))",
        "A=2; B=4; N=$(($A*$B))\ntorchrun p.py --num-layers $N",
        "export N=8\nN2=$N\ntorchrun p.py --num-layers ${N2}",
        "ARGS=(\n  --num-layers 8  # eight )\n)\ntorchrun p.py ${ARGS[@]}",
        'ARGS=(--num-layers 8)\ntorchrun p.py "${ARGS[@]}"',
        'ARGS="\n  --num-layers 8 \\\n  --bf16\n"\ntorchrun p.py $ARGS',
        "ARGS='--num-layers 8'\ntorchrun p.py $ARGS",
        "ARGS=(--bf16)\nARGS+=(--num-layers 8)\ntorchrun p.py ${ARGS[@]}",
        'ARGS="--bf16"\nARGS+=" --num-layers 8"\ntorchrun p.py $ARGS',
        "torchrun p.py \\\n  --bf16 \\\n  --num-layers 8\n",
        "MODEL_ARGS=(\n --num-layers 8\n)\n",  # no command: a file of variables to be sourced
        'srun bash -c "torchrun p.py --num-layers 8 --bf16"',
        "N=4\nif [ $BIG = 1 ]; then N=8; fi\ntorchrun p.py --num-layers $N",
        "torchrun p.py --num-layers 4 --num-layers 8",
        "torchrun p.py --num-layers 8\r\necho --num-layers 9\r\n",
        "torchrun p.py --num-layers 8 \\",  # cut off
        "torchrun p.py --num-layers 8 \\\r",
    ],
)
def test_the_same_in_many_spellings(text: str, tmp_path: Path) -> None:
    assert read(tmp_path, text).count("num-layers") == 8


def test_variables_that_stand_for_too_much_are_refused(tmp_path: Path) -> None:
    doubled = "".join(f'A{n + 1}="$A{n} $A{n}"\n' for n in range(40))
    with pytest.raises(InputError) as error:
        read(tmp_path, f'A0="--num-layers 8"\n{doubled}torchrun p.py $A40\n')
    assert error.value.code == "input-too-large"


def test_options_within_strings_and_arrays_know_their_lines(tmp_path: Path) -> None:
    text = 'A="\n  --one 1 \\\n  --two 2\n"\nB=(\n  --three 3\n)\nrun $A ${B[@]} \\\n  --four 4\n'
    args = read(tmp_path, text)
    lines = {name: argument.line for name, argument in args.options.items()}
    assert lines == {"one": 2, "two": 3, "three": 6, "four": 9}


def test_what_is_not_in_the_file_is_said_with_its_line(tmp_path: Path) -> None:
    args = read(tmp_path, "torchrun p.py --bf16 \\\n  --num-layers $LAYERS\n")
    assert [(one.message, one.where) for one in args.diagnostics] == [
        ("$LAYERS is not set in this file", f"{tmp_path / 'train.sh'}:2")
    ]
    assert "num-layers" not in args
    with pytest.raises(InputError, match=r"train\.sh:2: the value of --num-layers is not in this file"):
        args.count("num-layers")


def test_what_a_script_decides_is_said(tmp_path: Path) -> None:
    args = read(tmp_path, "N=1\nN=2\nif x; then\n  M=3\nfi\nrun --num-layers $N --hidden-size $M\n")
    said = [(one.message, (one.where or "").rpartition(":")[2]) for one in args.diagnostics]
    assert said == [
        ("N is given more than once: the last one counts", "2"),
        ("M is set within an if, which is not evaluated: taken as if it ran", "4"),
    ]


def test_nothing_is_run(tmp_path: Path) -> None:
    target = tmp_path / "made"
    args = read(tmp_path, f"X=$(touch {target})\nrun --num-layers $X --hidden-size `touch {target}`\n")
    assert not target.exists()
    assert "num-layers" not in args


def test_single_quotes_keep_their_dollars() -> None:
    script = read_script("A=1\nrun '$A' \"$A\"", "x.sh")
    assert [word.text for word in script.commands[0]] == ["run", "$A", "1"]


@pytest.mark.parametrize("text", ["", "echo hello\n", "\0\0", "#" * 1_000_001])
def test_texts_that_are_not_scripts(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    assert error.value.code == "wrong-format"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("run --num-layers", "--num-layers needs a value"),
        ("run --num-layers many", "many"),
        ("run --num-layers 0", "--num-layers 0 cannot be meant"),
        ("run --bf16", "--num-layers is missing"),
    ],
)
def test_values_that_cannot_be_meant(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=problem):
        read(tmp_path, text).count("num-layers")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        read_launch(tmp_path / "train.sh")
