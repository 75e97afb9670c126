"""From a model and a plan to the program of a training step.

from foretrace.workload.assemble import program_of
from foretrace.workload.settle import settle

program = program_of(settle(model, Plan(gpus=512, tp=4, pp=4, gbs=1024)))
"""
