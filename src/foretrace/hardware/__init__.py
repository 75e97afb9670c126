"""Describes GPUs, NICs, nodes and clusters, from presets with their sources or from a user's file.

Read `cluster` first. `presets` resolves names; `reader` and `topology_reader` read the YAML of presets and of users.
`device_names` understands what drivers and logs call GPUs. `fabric/` is the network of a cluster as a graph.
"""
