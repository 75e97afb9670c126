"""The work of every layer and of both ends of a model for one microbatch on one rank.

Read `piece.py` first: a layer is a row of pieces. `works.py` puts the pieces of a layer together, and `saved.py` what
recomputation runs again; `modules.py` lists the parts of a layer that a plan may name. `shape.py` holds everything that
the work depends on. `attention.py`, `latent.py`, `core.py`, `linear.py`, `mlp.py`, `experts.py`, `pointwise.py` and
`ends.py` are the parts of a model.
"""

from foretrace.workload.layers.works import (
    dropped_share,
    embedding_work,
    head_work,
    layer_work,
    mtp_work,
    offloaded_share,
    recomputed_modules,
)

__all__ = [
    "dropped_share",
    "embedding_work",
    "head_work",
    "layer_work",
    "mtp_work",
    "offloaded_share",
    "recomputed_modules",
]
