"""From a model and a plan to the program of a training step.

    setting = settle(model, Plan(gpus=512, tp=4, pp=4, gbs=1024))
    program = build_step(step_spec(setting))

`settle` makes and checks every choice, `layers` says what each part of the model then does, `assemble` places it.
"""
