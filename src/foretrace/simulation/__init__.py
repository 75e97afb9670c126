"""Turns programs and inputs into answers.

Read `simulate.py` first: a program is folded, run and read. `simulate_input.py` does it for an input on a machine, and
`foretrace.simulate` calls it. `action_level.py` finds the time of a step and nothing else. `rebatch.py` and
`rescale.py` change a recorded step to another batch or GPU, `overlap_cost.py` adds what communication costs the
computation next to it, and `remedies.py` and `relief.py` look for changes that make a step faster or make it fit.
`job_memory.py` and `dispatch_memory.py` count what a process holds outside the framework's allocator, and the former
says whether a plan fits. `network/` answers questions about single collectives.
"""
