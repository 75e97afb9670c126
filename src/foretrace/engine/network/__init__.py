"""Runs the messages of collectives on the links of a network.

Read `messages` first, then `collectives`, which writes collectives as messages. `flows` runs them where they share
links, with the event loop of `loop`, after `fold` has folded identical ones. `all_to_all` does the same for even
all-to-alls of any size, and `chunks` times rings, chains and pipelines without an event loop.
"""
