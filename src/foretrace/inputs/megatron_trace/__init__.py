"""Rank traces of Megatron, of a real run or taken ex situ on one GPU."""
