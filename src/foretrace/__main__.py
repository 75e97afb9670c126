"""`python -m foretrace`, and the command `foretrace`."""

import sys


def main() -> None:
    """Runs the command line; Ctrl-C ends it quietly even while it is still starting."""
    try:
        from foretrace.cli.main import run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
