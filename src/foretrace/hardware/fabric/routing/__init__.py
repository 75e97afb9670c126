"""Finds the paths that flows between GPUs take through a fabric.

Read `router` first. `local_paths` stays within a node or domain. For the rest of the network, `attachment` is the way
from a GPU to its first switches, `switching` the way between switches, and `crossing` joins the two for classes of
GPUs. `tiers` finds the narrow places: NICs that GPUs share, leaves, pods.
"""
