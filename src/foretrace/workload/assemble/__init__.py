"""From what layers do to the program of a step: pipeline, data parallelism, optimizer, memory, host."""

from foretrace.workload.assemble.assemble import program_of
from foretrace.workload.assemble.pieces import Works

__all__ = ["Works", "program_of"]
