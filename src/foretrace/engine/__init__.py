"""Runs a graph of ops: durations or prices in, starts and ends out.

Read `fixed_run` first: with known durations a step is a longest path, which `tape` computes for any graph and `chains`
for graphs of long chains, in the `order` of the structure. `shared_run` runs ops that divide resources: `shared_flows`
says what each unit draws, `shared_loop` is the event loop, `maxmin` gives fair rates. `steady` repeats steps until
their period is constant, `jit` compiles inner loops. `network/` runs the messages of single collectives.
"""
