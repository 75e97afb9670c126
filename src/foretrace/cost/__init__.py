"""Prices every op of a program on a machine, and says where each price comes from.

Read `machine` first: a `Machine` holds the cluster, the placement and the price sources, and owns all price caches.
`machine_texts` makes one of the options of a command line or a page.
`pricing` prices a program, `prices` is the result. `sources` chooses between the sources; `calibration` is a user's own
measurements and `silicon` finds NVIDIA's tables. `mix` counts the kernels of a program. `overlap` is what kernels lose
to concurrent communication. `kernels/` prices kernels, `network/` prices communication.
"""
