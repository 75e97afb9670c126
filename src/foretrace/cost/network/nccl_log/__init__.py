"""Reads what NCCL itself reports on a user's machine, in logs and dumps.

Read `observations` first: `Observed` is all that was learned, and how prices use it. `reader` makes it from files:
`log` parses NCCL_DEBUG=INFO, `graph` parses NCCL_GRAPH_DUMP_FILE, `system` parses NCCL_TOPO_DUMP_FILE, the latter two
with `xml`. `names` translates NCCL's names of functions, algorithms and protocols.
"""
