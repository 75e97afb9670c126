"""How PyTorch's DistributedDataParallel divides gradients: into buckets, each all-reduced as soon as it is full."""

from __future__ import annotations

from typing import Final

FIRST_BUCKET_BYTES: Final = 1 << 20
BUCKET_BYTES: Final = 25 << 20
"""PyTorch's `DistributedDataParallel`: bucket_cap_mb = 25, the first bucket 1 MiB so that communication starts early
(torch/nn/parallel/distributed.py, `_DEFAULT_FIRST_BUCKET_BYTES`)."""

OVERLAPS: Final = ("on", "none")
"""Buckets are reduced under the backward, or all of them after it."""
