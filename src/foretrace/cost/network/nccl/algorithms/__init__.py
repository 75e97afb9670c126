"""What each of the algorithms of NCCL takes."""
