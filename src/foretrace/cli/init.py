"""`foretrace init`: write a commented job file of a model's name, a Hugging Face configuration or a launch script."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretrace.basics.errors import UsageError
from foretrace.cli.emit import wrote

if TYPE_CHECKING:
    from foretrace.workload.write_job import JobDraft

EXAMPLES = """Examples:

foretrace init --model llama3-70b -o job.yaml

foretrace init --from train.sh -o job.yaml

foretrace init --from ds_config.json --model llama3-8b -o job.yaml"""

_LEFT_OUT = ("unused-flags", "not-modelled")
"""Codes of what a launch script says and a job file does not; all else that is noted was guessed."""


def command(
    hf: Annotated[Path | None, typer.Option("--hf", metavar="FILE", help="A config.json of Hugging Face.")] = None,
    launched: Annotated[
        Path | None,
        typer.Option(
            "--from",
            "--from-megatron",
            metavar="FILE",
            help="A launch script or configuration of Megatron-LM, Megatron-Bridge, torchtitan or DeepSpeed; not run.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="A model's name; with --from, where FILE has none.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME", help="What it runs on: see foretrace list clusters.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT", help="Write it there; else to the screen.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a job file to start from: the model, a plan, a cluster, every guess marked."""
    sources = {"--hf": hf, "--from": launched, "--model": None if launched else model}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        problem = "from what?" if not given else f"{' and '.join(given)} cannot both be meant"
        raise UsageError(
            "missing-argument", problem, hint="one of --hf config.json, --from train.sh, --model llama3-70b"
        )
    if output is not None and output.exists() and not force:
        hint = "another name with -o, or --force to write over it"
        raise UsageError("file-exists", f"{output} is there already", hint=hint)
    from foretrace.basics.outputs import write_text
    from foretrace.workload.write_job import job_text

    if cluster is not None:
        from foretrace.hardware import presets as hardware

        hardware.cluster(cluster)
    if hf is not None:
        draft = _from_hf(hf, cluster)
    elif launched is not None:
        draft = _from_launch(launched, model, cluster)
    else:
        draft = _from_name(str(model), cluster)
    text = job_text(draft)
    if output is None:
        print(text, end="")
        return
    write_text(output, text, "job file")
    guesses = text.count("# guessed:")
    wrote(output, f"{guesses} {'guess' if guesses == 1 else 'guesses'} to look at")


def _from_name(name: str, cluster: str | None) -> JobDraft:
    from foretrace.models import presets
    from foretrace.workload.write_job import JobDraft

    model = presets.model(name)
    return JobDraft(model.name, {"seq_len": model.seq_len}, cluster, model.title)


def _from_hf(path: Path, cluster: str | None) -> JobDraft:
    from foretrace.models.from_hf import model_from_hf
    from foretrace.models.write_spec import model_spec
    from foretrace.workload.write_job import JobDraft

    model, guesses = model_from_hf(path)
    notes = tuple(guess.message for guess in guesses)
    return JobDraft(model_spec(model), {"seq_len": model.seq_len}, cluster, path.name, notes)


def _from_launch(path: Path, name: str | None, cluster: str | None) -> JobDraft:
    from foretrace.models import presets
    from foretrace.models.write_spec import model_spec
    from foretrace.workload.launch.read_launch import read_launch
    from foretrace.workload.write_job import JobDraft

    job = read_launch(path, presets.model(name) if name is not None else None)
    guesses, remarks = (
        tuple(note.message + _line(note.where) for note in job.diagnostics if (note.code in _LEFT_OUT) == left_out)
        for left_out in (False, True)
    )
    known = presets.is_known(job.model.name) and presets.model(job.model.name) is job.model
    model = job.model.name if known else model_spec(job.model)
    return JobDraft(model, job.plan, cluster, path.name, guesses, job.plan_guesses, remarks)


def _line(where: str | None) -> str:
    number = (where or "").rpartition(":")[2]
    return f" (line {number})" if number.isdecimal() else ""
