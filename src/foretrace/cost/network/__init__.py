"""What communication takes: the interface of every network model, and the models."""

from foretrace.cost.network.hierarchical import HierarchicalNetwork
from foretrace.cost.network.interface import CallPrices, Network

__all__ = ["CallPrices", "HierarchicalNetwork", "Network"]
