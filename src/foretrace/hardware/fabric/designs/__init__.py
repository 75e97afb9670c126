"""The kinds of networks, and how each is laid out as a graph."""
