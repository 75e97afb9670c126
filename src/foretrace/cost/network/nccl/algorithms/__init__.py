"""Times the algorithms of NCCL, one module each. `tuning.py` above chooses between them.

Read `ring` first, which also has the law of a step that `pairs` uses. `tree` is the double binary tree, `nvls` the
reduction in switches (NVLS, NVLSTree, CollNet) and PAT, `pairs` sends and receives.
"""
