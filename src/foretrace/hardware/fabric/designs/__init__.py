"""Lays out each kind of network as a graph; `foretrace.hardware.fabric.build` chooses the design.

Read `draft` first, which collects devices and links. `node` adds the inside of nodes. `clos` builds networks of leaves,
spines and cores, with the sizes that `reference` states for each kind; `dragonfly` and `torus` build the others.
`topology_file` builds networks that a user lists link by link, also from SimAI's files (`simai_topology`).
"""
