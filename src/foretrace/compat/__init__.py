"""Reproduces the arithmetic of other simulators, so that their numbers can be compared with ours: `simai/`."""
