"""How long generated AICB files take, against what is predicted of the same plans: the table of docs/generate.md.

    python benchmarks/generated.py

Both sides have the network model, not NVIDIA's tables, since a file says nothing of kernels. Columns: a stack that
hides no tp collective; Megatron-core with all of them listed; the same with only those that are exposed.
"""

from __future__ import annotations

from dataclasses import replace

import foretrace
from foretrace import Machine, Plan, PriceSources, load_cluster, load_model, simulate
from foretrace.cost.sources import kernel_prices
from foretrace.export.aicb import aicb_workload
from foretrace.inputs.aicb.program import lower_workload
from foretrace.step import build_step
from foretrace.workload.setting import Setting
from foretrace.workload.settle import settle
from foretrace.workload.stacks import stack
from foretrace.workload.step_spec import step_spec

CLUSTER = load_cluster("h100-dgx")
PRICES = PriceSources(silicon=False)
JOBS = (
    ("llama3-8b", Plan(gpus=8, tp=2, gbs=32)),
    ("gpt3-13b", Plan(gpus=64, tp=8, pp=2, gbs=64)),
    ("mixtral-8x7b", Plan(gpus=64, ep=8, gbs=128)),
    ("llama3.1-405b", Plan(gpus=1024, tp=8, pp=16, gbs=512)),
)


def of_file(setting: Setting, *, exposed_only: bool = False) -> float:
    """The step of the file that is generated for a setting, in seconds."""
    kernels = kernel_prices(CLUSTER, setting.plan.gpus, PRICES)
    made = aicb_workload(setting, kernels, exposed_only=exposed_only)
    return simulate(lower_workload(made.workload), Machine(CLUSTER, prices=PRICES), explain=False).step_time_s


def main() -> None:
    """Prints a row for each job."""
    for name, job_plan in JOBS:
        plan, model = replace(job_plan, grad_overlap=False, param_overlap=False), load_model(name)
        bare = settle(model, plan, replace(stack("megatron-core"), hides_tp_backward=False))
        machine = Machine(CLUSTER, prices=PRICES)
        alone = simulate(build_step(step_spec(bare)), machine, explain=False).step_time_s
        usual = settle(model, plan)
        want = simulate(foretrace.model(model, plan), machine, explain=False, even_if_oom=True).step_time_s
        errors = (
            of_file(bare) / alone - 1,
            of_file(usual) / want - 1,
            of_file(usual, exposed_only=True) / want - 1,
        )
        print(f"{name:<16}" + "".join(f"{error:+10.1%}" for error in errors))


if __name__ == "__main__":
    main()
