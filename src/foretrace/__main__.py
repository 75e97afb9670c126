"""`python -m foretrace`."""

from foretrace.cli.main import run

run()
