"""`python -m foretrace`, and the command `foretrace`."""

import signal
import sys


def main() -> None:
    """Runs the command line; a signal ends it quietly even while it is still starting."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's handler would leave a traceback of the next import
    from foretrace.basics.processes import INTERRUPTED, Terminated, end_on_signals, raise_on_signals, say

    raise_on_signals()
    try:
        from foretrace.cli.main import run

        run()
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(INTERRUPTED)
    except Terminated as error:
        say("terminated")
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


if __name__ == "__main__":
    main()
