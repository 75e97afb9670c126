"""`python -m foretrace`, and the command `foretrace`."""

import sys

from foretrace.basics.processes import INTERRUPTED, Terminated, end_on_signals, raise_on_signals


def main() -> None:
    """Runs the command line; a signal ends it quietly even while it is still starting."""
    raise_on_signals()
    try:
        from foretrace.cli.main import run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except Terminated as signal:
        sys.exit(signal.exit_code)
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
