"""Runs the command line: its commands, each imported when it is run, and how errors leave it."""

from __future__ import annotations

import codecs
import errno
import json
import os
import shlex
import signal
import sys
import threading
import time
import warnings
from contextlib import nullcontext, redirect_stdout, suppress
from importlib import import_module
from io import StringIO, TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from foretrace.basics.errors import DefectError, ForetraceError, InputError, UsageError, did_you_mean
from foretrace.basics.last_resort import as_defect, show_plainly, wants_traceback
from foretrace.basics.processes import INTERRUPTED, Terminated, say

COMMANDS: Final = {
    "predict": "Predict the step of a model: its time, utilisation, memory, and where the time goes.",
    "plan": "Find the plan of a model that is predicted to be fastest, and which plans to measure first.",
    "memory": "Show what each stage holds at its peak, by kind, and whether it fits.",
    "simulate": "Run a job and show its step time, where the time goes and what would help.",
    "trace": "Trace a PyTorch training script as if on any number of GPUs; none is needed.",
    "sweep": "Run a job over ranges of values: GPUs, plans, clusters, what-ifs.",
    "network": "Show what a collective takes, how NCCL runs it, its bus bandwidth and what limits it.",
    "compare": "Compare a prediction with a measured step, or two predictions: the difference and its causes.",
    "explain": "Explain a run: what it waited for, for whom, and what to change.",
    "report": "Write saved answers as one page to look at and to mail: a file that needs no network.",
    "serve": "Serve a page on which everything can be asked; its address is printed.",
    "validate": "Predict measured runs, and show how far off the predictions are.",
    "generate": "Write a job as a SimAI/AICB workload, as Megatron rank traces, as a program, or as a launch script.",
    "init": "Write a job file to start from: the model, a plan, a cluster, every guess marked.",
    "inspect": "Say what a file is, what is in it and what is odd about it.",
    "measure": "Measure what kernels take on the GPU of this machine.",
    "calibrate": "Fit prices to your machine, from traces, tables, logs and whole steps.",
    "calibration": "Show what a calibration covers, and which kernels of a job it does not know.",
    "list": "List what can be named: models, clusters, GPUs, stacks, schedules, …",
    "show": "Show a model, cluster, node, GPU or NIC and the sources of its figures.",
}
"""Commands with their help in one line; each is the module of its name in this folder."""

ALIASES: Final = {"profile": "measure"}
"""Older names of commands, which still work."""

ERROR_SCHEMA: Final = "foretrace.error/1"

OUTPUT_FOLDER: Final = "OUT_DIR"
OUTPUT_BY_FORMAT: Final = "OUT|OUT_DIR"
"""Metavars of outputs that are folders, and of those that the command claims when it knows which they are."""

_OUTPUTS_WITH_ORIGIN: Final = ("OUT.html", "OUT.answer")
"""Metavars of outputs that state the hashes of the files that were read."""

SCRIPT_ENDING: Final = ".py"
"""The ending of training scripts, whose arguments follow after `--`."""

_WORDS: Final = "foretrace.words"
"""The words of the command line, among what click remembers of a command."""

ClickException: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""The exception that click raises for a wrong command line; recent versions of typer carry a click of their own."""


class GroupedCommand(TyperCommand):
    """A command whose help lists its options by noun: those of the job, the machine, the scenario, the output.

    An option whose metavar begins with OUT is an output: a file, or a folder where it is `OUT_DIR`. All outputs are
    checked before the command runs, and are kept apart from its inputs while it runs.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Reads the options; whether a file can be read or written is found where that is done, with our own errors."""
        ctx.meta[_WORDS] = (ctx.info_name, *args)
        for param in self.params:
            kind: Any = param.type
            if hasattr(kind, "readable"):  # click's own check of paths
                kind.convert = lambda value, *_: value
        words = args[args.index("--") + 1 :] if "--" in args else []
        rest = super().parse_args(ctx, args)
        _take_script_arguments(ctx.params, words)
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Runs the command on its outputs."""
        from foretrace.basics.file_registry import tracked_files
        from foretrace.basics.outputs import claim_output

        hashes = any(
            param.metavar in _OUTPUTS_WITH_ORIGIN and ctx.params.get(param.name) is not None for param in self.params
        )
        with tracked_files(ctx.meta.get(_WORDS, ()), hashes_inputs=hashes) as files:
            inputs: list[Any] = []
            for param in self.params:
                value = ctx.params.get(param.name)
                metavar = param.metavar or ""
                if not metavar.startswith("OUT"):
                    inputs += value if isinstance(value, (list, tuple)) else [value]
                    continue
                _check_output_name(param.opts[-1], value)
                if value is not None and metavar != OUTPUT_BY_FORMAT:
                    claim_output(Path(value), folder=metavar == OUTPUT_FOLDER)
            for value in inputs:
                if isinstance(value, (str, Path)):
                    files.check_input(value)
            return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the options under a heading for each noun, the command's own first."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                argument = param.param_type_name == "argument"
                heading = "Arguments" if argument else getattr(param, "rich_help_panel", None) or "Options"
                sections.setdefault(heading, []).append(record)
        order = ("Arguments", "Options", "Job", "Machine", "Scenario", "Output")
        for heading in sorted(sections, key=lambda name: order.index(name) if name in order else 1):
            with formatter.section(heading):
                formatter.write_dl(sections[heading])


class LazyGroup(TyperGroup):
    """The commands of `COMMANDS`, each imported when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        """Returns the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - click's signature
        """Imports a command."""
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        module = import_module(f"foretrace.cli.{name}")
        app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
        settings = {"help_option_names": ["-h", "--help"]}
        app.command(name, cls=GroupedCommand, epilog=module.EXAMPLES, context_settings=settings)(module.command)
        return typer.main.get_command(app)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds a command by its name; an error names the nearest."""
        name = args[0]
        if name not in COMMANDS and name not in ALIASES and not name.startswith("-"):
            problem = f'"{name}" is not a command{did_you_mean(name, COMMANDS)}'
            raise UsageError("usage", problem, hint="foretrace --help lists the commands")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's signature
        """Writes the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    name="foretrace",
    cls=LazyGroup,
    help="How long a training step takes on a cluster you do not have yet, where the time goes, and what to change.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Examples:  foretrace predict llama3-70b --gpus 512 --cluster h100-dgx --tp 4 --pp 4 --gbs 1024   |   "
    "foretrace simulate FILE --cluster h100-dgx   |   foretrace explain TRACES",
)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and exit.")
) -> None:
    """Reads the options that belong to no command."""
    if version:
        from foretrace import __version__

        print(f"foretrace {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


class _Progress:
    """Shows on the terminal what is being done and for how long, after a second; silent without a terminal."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> _Progress:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        started = time.monotonic()
        width = 0
        while not self._done.wait(1.0):
            line = _within_terminal(f"{self.text} … {time.monotonic() - started:.0f} s")
            # Blanks cover what is left of a longer line before.
            print(f"\r{line:<{width}}", end="", file=sys.stderr, flush=True)
            width = max(width, len(line))
        if width:
            print(f"\r{' ' * width}\r", end="", file=sys.stderr, flush=True)


def _within_terminal(line: str) -> str:
    """Returns a line that fits into one row of the terminal, so that the next one can replace it."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return line
    return line if len(line) < columns or columns < 2 else f"{line[: columns - 2]}…"


SPELLINGS: Final = {
    "−": "-", "–": "-", "×": "x", "µ": "u", "·": "|", "…": "...", "→": "->", "±": "+-", "≤": "<=", "≥": ">=", "≈": "~"
}  # fmt: skip
"""Characters of our screens in ASCII, for terminals that have no others. A lost minus sign would be a wrong number."""


def _spelled(error: UnicodeError) -> tuple[str, int]:
    """Spells what an encoding does not have; a codec's error handler."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(SPELLINGS.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


def run(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits with a code of `foretrace.basics.codes`."""
    if arguments is None:
        _prepare_process()
    codecs.register_error("foretrace", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="foretrace")
    sys.exit(_exit_code(sys.argv[1:] if arguments is None else arguments))


def _prepare_process() -> None:
    """Sets what belongs to the process, which is the user's where Foretrace is called as a library."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that has gone ends the program, as it does other tools
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # it replaces a closed standard stream; otherwise the next file would, and messages would go into it
    os.close(handle)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - open to the end
    if not sys.warnoptions and not wants_traceback():
        warnings.simplefilter("ignore")  # warnings of libraries are for programmers


def _exit_code(arguments: list[str]) -> int:
    if sys.stdout is None:  # closed by whoever started the program
        return _unwritten("standard output is closed")
    # A command that is interrupted while it prints JSON must not leave half a document, nor two.
    document = StringIO() if "--json" in arguments else None
    try:
        code, failure = _outcome(arguments, document)
        return _show(code, failure, document)
    except OSError as error:
        _discard_output()
        return _unwritten(error.strerror)
    except (KeyboardInterrupt, Terminated) as error:
        say("terminated" if isinstance(error, Terminated) else "interrupted")
        return error.exit_code if isinstance(error, Terminated) else INTERRUPTED
    except Exception:  # not even the error could be shown
        show_plainly()
        return DefectError.exit_code


def _outcome(arguments: list[str], document: StringIO | None) -> tuple[int, ForetraceError | None]:
    """Runs a command; returns its exit code, and the error where it failed."""
    from foretrace.basics.progress import shown_by

    try:
        _refuse_empty(arguments)
        with shown_by(_Progress), nullcontext() if document is None else redirect_stdout(document):
            code = app(arguments, standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # some versions of typer turn Ctrl-C into an exit code themselves
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0, None
    except ForetraceError as error:
        return error.exit_code, error
    except ClickException as error:
        hint = "SimAI's own flags come last, after --" if "--compat" in arguments else None
        if any(argument.endswith(".py") for argument in arguments) and "--" not in arguments:
            hint = "arguments of the script itself follow after --"
        return 2, UsageError("usage", error.format_message(), hint=hint)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED, ForetraceError("interrupted", "interrupted")
    except Terminated as error:
        return error.exit_code, ForetraceError("interrupted", "terminated")
    except OSError as error:
        if error.errno == errno.ENOMEM:
            return DefectError.exit_code, as_defect(error, arguments)
        if error.filename is None:  # a stream
            raise
        from foretrace.basics.files import unreadable

        return 3, InputError(unreadable(error), f"the system refuses it: {error.strerror}", where=str(error.filename))
    except Exception as error:
        if wants_traceback():
            import traceback

            traceback.print_exception(error)
        return DefectError.exit_code, as_defect(error, arguments)


def _show(code: int, failure: ForetraceError | None, document: StringIO | None) -> int:
    """Prints what a command has left to print: its JSON, or its error; returns the exit code.

    Where JSON was asked for, an error is an object on stdout, unless the answer is already there. Otherwise it is lines
    on stderr.
    """
    text = "" if document is None else document.getvalue()
    answered = text.endswith("\n")
    if failure is not None and document is not None and not answered:
        text = json.dumps({"schema": ERROR_SCHEMA, "error": failure.to_dict()}) + "\n"
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()
    if failure is not None and failure.code == "interrupted":
        say(failure.message)
    elif failure is not None and (document is None or answered):
        from foretrace.report.wrap import fit_text

        say(fit_text(f"error: {failure}", sys.stderr))
    return code


def _take_script_arguments(params: dict[str, Any], words: list[str]) -> None:
    """Makes the words after `--` the arguments of a script, instead of further paths.

    Args:
        params: The values of a command, with `arguments` if the command takes scripts.
        words: The words after `--`.
    """
    paths = params.get("paths") or []
    named = paths[: len(paths) - len(words)]
    if "arguments" not in params or not words or not any(Path(path).suffix == SCRIPT_ENDING for path in named):
        return
    if params["arguments"] is not None:
        raise UsageError("repeated-option", "arguments of the script are given by --args and after --")
    params["paths"], params["arguments"] = named, shlex.join(words)


def _unwritten(reason: str | None) -> int:
    """Says why the answer could not be printed; returns the exit code."""
    error = InputError("unwritable-file", f"the answer cannot be written: {reason}")
    say(f"error: {error}")
    return error.exit_code


def _check_output_name(option: str, name: Any) -> None:
    """Raises an error where an output has no name, or the next option or `-` in place of it."""
    if name == "":
        hint = "is a variable of the shell not set?"
        raise UsageError("missing-argument", f"{option} has no name of a file or folder", hint=hint)
    if isinstance(name, str) and name.startswith("--"):
        hint = f"name the file, or write ./{name} if it is called so"
        raise UsageError("missing-argument", f"{option} is followed by an option, not by a name", hint=hint)
    if name == "-":
        hint = "--json prints to standard output; ./- is a file of this name"
        raise UsageError("bad-value", f"{option} has no name of a file or folder", hint=hint)


def _refuse_empty(arguments: list[str]) -> None:
    """Raises an error where a file's name has no characters, which would mean the current folder, or a null character,
    which no name has; what an empty value of an option means is for its command to say."""
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if "\0" in argument:
            raise UsageError("usage", "an argument has a null character")
        if not argument and not before.startswith("-"):
            raise UsageError("missing-argument", "an argument is empty", hint="is a variable of the shell not set?")


def _discard_output() -> None:
    """Lets Python exit without trying again to write what could not be written."""
    with suppress(OSError):  # a stream without a file needs nothing
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
