"""Answers what one collective takes on a cluster.

Read `network.py` first: the answer of `foretrace network`. `words.py` reads the question and `placed_groups.py` places
the ranks. `on_links.py` runs the collective on the links of a `flow_network.py`: as flows (`flows.py`) or, with ns-3,
packet by packet (`packets.py`, and `packets_ns3.py` in a process of its own).
"""
