"""`python -m foretrace`, and the command `foretrace`."""

import signal
import sys
from contextlib import suppress


def main() -> None:
    """Runs the command line; a signal ends it quietly even while it is still starting."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's handler would leave a traceback of the next import
    from foretrace.basics.processes import INTERRUPTED, Terminated, end_on_signals, raise_on_signals

    raise_on_signals()
    try:
        from foretrace.cli.main import run

        run()
    except KeyboardInterrupt:
        _say("interrupted")
        sys.exit(INTERRUPTED)
    except Terminated as error:
        _say("terminated")
        sys.exit(error.exit_code)
    except Exception as error:  # the installation is broken: the command line itself reports its own
        from foretrace.basics.last_resort import as_defect, show_plainly, wants_traceback

        if wants_traceback():
            raise
        defect = as_defect(error, sys.argv[1:])
        show_plainly(defect)
        sys.exit(defect.exit_code)
    finally:
        end_on_signals()


def _say(text: str) -> None:
    """Writes a line to stderr, where that is open; `print` would take stdout instead."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
