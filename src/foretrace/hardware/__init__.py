"""GPUs, NICs, nodes and clusters, from presets with their sources or from a user's file."""
