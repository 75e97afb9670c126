"""The command line: its commands, and how errors leave it."""

from __future__ import annotations

import os
import signal
import sys
from io import TextIOWrapper
from typing import Any

import typer

from foretrace.cli import (
    calibrate,
    calibration,
    compare,
    explain,
    generate,
    init,
    inspect,
    memory,
    network,
    predict,
    profile,
    show,
    simulate,
    sweep,
    validate,
)
from foretrace.cli import list as listing
from foretrace.errors import ForetraceError, UsageError, printable

app = typer.Typer(
    name="foretrace",
    help="How long a training step takes on a cluster you do not have yet, where the time goes, and what to change.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Examples:  foretrace simulate FILE --cluster h100-dgx   |   foretrace explain TRACES",
)
app.command("predict", epilog=predict.EXAMPLES)(predict.command)
app.command("memory", epilog=memory.EXAMPLES)(memory.command)
app.command("simulate", epilog=simulate.EXAMPLES)(simulate.command)
app.command("sweep", epilog=sweep.EXAMPLES)(sweep.command)
app.command("network", epilog=network.EXAMPLES)(network.command)
app.command("compare", epilog=compare.EXAMPLES)(compare.command)
app.command("explain", epilog=explain.EXAMPLES)(explain.command)
app.command("validate", epilog=validate.EXAMPLES)(validate.command)
app.command("generate", epilog=generate.EXAMPLES)(generate.command)
app.command("init", epilog=init.EXAMPLES)(init.command)
app.command("inspect", epilog=inspect.EXAMPLES)(inspect.command)
app.command("profile", epilog=profile.EXAMPLES)(profile.command)
app.command("calibrate", epilog=calibrate.EXAMPLES)(calibrate.command)
app.command("calibration", epilog=calibration.EXAMPLES)(calibration.command)
app.command("list", epilog=listing.EXAMPLES)(listing.command)
app.command("show", epilog=show.EXAMPLES)(show.command)


ClickException: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""What click raises for a wrong command line; recent versions of typer carry a click of their own."""


INTERRUPTED = 130


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and exit.")
) -> None:
    """Options that are no command's."""
    if version:
        from foretrace import __version__

        print(f"foretrace {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def run(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits: 0 ok, 2 usage, 3 bad input, 4 nothing feasible, 5 deadlock, 130 interrupted."""
    if arguments is None and hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that has gone ends the program, as it does other tools
    for stream in (sys.stdout, sys.stderr):
        # Where a terminal cannot show a sign, it shows another; the answer is still an answer.
        if isinstance(stream, TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="replace")
    sys.exit(_exit_code(arguments))


def _exit_code(arguments: list[str] | None) -> int:
    if sys.stdout is None:  # closed by whoever started the program
        print("error: the answer cannot be written: standard output is closed", file=sys.stderr)
        return 3
    try:
        _refuse_empty(sys.argv[1:] if arguments is None else arguments)
        code = app(arguments, standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # some versions of typer turn Ctrl-C into an exit code themselves
            print("interrupted", file=sys.stderr)
        return code if isinstance(code, int) else 0
    except ForetraceError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: the answer cannot be written: {error.strerror}", file=sys.stderr)
        _discard_output()
        return 3
    except ClickException as error:
        print(f"error: {error.format_message()}", file=sys.stderr)
        if "--compat" in (sys.argv if arguments is None else arguments):
            print("       SimAI's own flags come last, after --", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _refuse_empty(arguments: list[str]) -> None:
    """Raises an error where a file's name has no characters, which would mean the folder one is in; what an empty value
    of an option means is for its command to say."""
    for before, one in zip(["", *arguments], arguments, strict=False):
        if not one and not before.startswith("-"):
            raise UsageError("an argument is empty", hint="a variable of the shell that is not set?")


def _discard_output() -> None:
    """Lets Python exit without trying again to write what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
