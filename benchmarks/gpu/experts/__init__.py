"""Measures kernels of expert layers on a GPU, and what launching takes its host, as JSON lines.

Needs PyTorch with CUDA and Triton, and nvcc for one part: `PYTHONPATH=src:benchmarks/gpu python -m experts -o FILE`.

Parts run one after the other in a child process, each until its time is up. If the child dies or hangs, another one
goes on with the next part (`__main__`). `measuring` is what parts share. Rows are written as they are measured:

- `facts`: the machine; `part`: a part that starts or ends; `skipped`, `failed`: what is missing, and why;
- `check`: the largest error of a Triton kernel against PyTorch; `tuning`: the configurations of a kernel;
- `kernel`: `burst_s` and `sustained_s` as docs/kernel-profiles.md defines them; `how` says whose kernel, `pattern` how
  rows are spread over experts: `equal`, `random` (multinomial, the same sum) or `skewed`;
- `host`: microseconds of the host for one call, or for one of `count` launches or layers of a call;
- `ratio`: random (skewed) over equal rows, of grouped products.
"""
