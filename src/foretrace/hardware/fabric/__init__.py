"""Holds the network of a cluster as a graph of devices and links.

Read `fabric` first, then `build`, which makes one from the `topology` of a cluster. `designs/` lays out the kinds of
networks; `routing/` finds the paths of flows. `graph` indexes the links, `names` finds the links that users name,
`merging` folds interchangeable switches, `csr` and `hashing` are helpers over arrays.
"""
