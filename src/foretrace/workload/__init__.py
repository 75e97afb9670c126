"""Turns a model and a plan into the description of a training step.

    setting = settle(model, Plan(gpus=512, tp=4, pp=4, gbs=1024))
    program = build_step(step_spec(setting))

Read `settle.py` first: it makes and checks every choice that a `Plan` leaves open, and returns a `Setting`.
`constraints.py` lists the plans that software refuses, and `nearest_plans.py` finds those that a hint names.
`layers` has what each part of the model then does, and `step_spec.py` the step. `stack.py` and `stacks.py` describe
software.
`job_file.py` and `write_job.py` are the YAML of a job; `launch` maps plans to options of frameworks.
"""
