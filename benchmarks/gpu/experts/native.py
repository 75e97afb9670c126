"""Launches kernels and cublasLt's products in loops in C++, in a library that nvcc compiles."""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from experts.measuring import DEVICE, LT_WORKSPACE_BYTES, STREAMS
from foretrace.calibrate.gpu.case import Launch

NATIVE_SOURCE = r"""
// Launches in a loop of C++, as Transformer Engine does: kernels (split_quantize) and cublasLt's products
// (multi_stream_cublas_gemm). cublasLt is found in the process by dlsym; its enumerators are written as numbers.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

namespace {
constexpr int kStreams = 4;
cudaStream_t side[kStreams];
cudaEvent_t forked, joined[kStreams];
void *library = nullptr, *handle = nullptr;

__global__ void tiny(float *x, int size) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < size) x[at] += 1.0f;
}

void fork(cudaStream_t main, int streams) {
  cudaEventRecord(forked, main);
  for (int s = 0; s < streams; ++s) cudaStreamWaitEvent(side[s], forked, 0);
}

void join(cudaStream_t main, int streams) {
  for (int s = 0; s < streams; ++s) {
    cudaEventRecord(joined[s], side[s]);
    cudaStreamWaitEvent(main, joined[s], 0);
  }
}

struct Heuristic {
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

template <typename Function>
Function *find(const char *name) {
  return reinterpret_cast<Function *>(dlsym(library, name));
}
}  // namespace

extern "C" int native_open(const char *path) {
  for (int s = 0; s < kStreams; ++s) {
    cudaStreamCreateWithFlags(&side[s], cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&joined[s], cudaEventDisableTiming);
  }
  cudaEventCreateWithFlags(&forked, cudaEventDisableTiming);
  library = dlopen(path, RTLD_NOW);
  if (library == nullptr) return 1000;
  auto create = find<int(void **)>("cublasLtCreate");
  return create == nullptr ? 1001 : create(&handle);
}

extern "C" int native_kernels(void *stream, int count, int streams, float *x, int size) {
  auto main = static_cast<cudaStream_t>(stream);
  if (streams > 1) fork(main, streams);
  for (int i = 0; i < count; ++i) tiny<<<(size + 255) / 256, 256, 0, streams > 1 ? side[i % streams] : main>>>(x, size);
  if (streams > 1) join(main, streams);
  return cudaGetLastError();
}

// out[rows, n] = x[rows, k] * w[n, k]^T for each group; `reuse` keeps the first group's algorithm for all.
extern "C" int native_products(void *stream, int groups, int streams, int reuse, const int *rows, int n, int k,
                               void **x, void **w, void **out, char *workspace, size_t workspace_bytes) {
  using Desc = void *;
  static auto desc_create = find<int(Desc *, int, int)>("cublasLtMatmulDescCreate");
  static auto desc_set = find<int(Desc, int, const void *, size_t)>("cublasLtMatmulDescSetAttribute");
  static auto desc_destroy = find<int(Desc)>("cublasLtMatmulDescDestroy");
  static auto layout_create = find<int(Desc *, int, uint64_t, uint64_t, int64_t)>("cublasLtMatrixLayoutCreate");
  static auto layout_destroy = find<int(Desc)>("cublasLtMatrixLayoutDestroy");
  static auto wish_create = find<int(Desc *)>("cublasLtMatmulPreferenceCreate");
  static auto wish_set = find<int(Desc, int, const void *, size_t)>("cublasLtMatmulPreferenceSetAttribute");
  static auto wish_destroy = find<int(Desc)>("cublasLtMatmulPreferenceDestroy");
  static auto choose = find<int(void *, Desc, Desc, Desc, Desc, Desc, Desc, int, Heuristic *, int *)>(
      "cublasLtMatmulAlgoGetHeuristic");
  static auto multiply =
      find<int(void *, Desc, const void *, const void *, Desc, const void *, Desc, const void *, const void *, Desc,
               void *, Desc, const void *, void *, size_t, cudaStream_t)>("cublasLtMatmul");
  constexpr int kFloat = 0, kBf16 = 14, kCompute = 68, kTransA = 3, kTransB = 4, kEpilogue = 7;
  constexpr int kWorkspace = 1, kAlignment = 5;
  auto main = static_cast<cudaStream_t>(stream);
  const float one = 1.0f, zero = 0.0f;
  const int transposed = 1, plain = 0, epilogue = 1;
  Heuristic found = {};
  int error = 0;
  if (streams > 1) fork(main, streams);
  for (int g = 0; g < groups; ++g) {
    Desc desc = nullptr, a = nullptr, b = nullptr, c = nullptr, d = nullptr;
    error |= layout_create(&a, kBf16, k, n, k) | layout_create(&b, kBf16, k, rows[g], k);
    error |= layout_create(&c, kBf16, n, rows[g], n) | layout_create(&d, kBf16, n, rows[g], n);
    error |= desc_create(&desc, kCompute, kFloat);
    error |= desc_set(desc, kTransA, &transposed, sizeof(int)) | desc_set(desc, kTransB, &plain, sizeof(int));
    error |= desc_set(desc, kEpilogue, &epilogue, sizeof(int));
    if (!reuse || g == 0) {
      int results = 0;
      Desc wish = nullptr;
      error |= wish_create(&wish);
      error |= wish_set(wish, kWorkspace, &workspace_bytes, sizeof(size_t));
      const void *operands[] = {w[g], x[g], out[g], out[g]};
      for (int at = 0; at < 4; ++at) {
        uint32_t alignment = 256;
        while (reinterpret_cast<uintptr_t>(operands[at]) % alignment != 0) alignment /= 2;
        error |= wish_set(wish, kAlignment + at, &alignment, sizeof(alignment));
      }
      error |= choose(handle, desc, a, b, c, d, wish, 1, &found, &results);
      if (results == 0) error |= 1 << 20;
      wish_destroy(wish);
    }
    int s = g % streams;
    if (error == 0)
      error |= multiply(handle, desc, &one, w[g], a, x[g], b, &zero, out[g], c, out[g], d, found.algorithm,
                        workspace + s * workspace_bytes, workspace_bytes, streams > 1 ? side[s] : main);
    layout_destroy(a), layout_destroy(b), layout_destroy(c), layout_destroy(d), desc_destroy(desc);
    if (error != 0) return error;
  }
  if (streams > 1) join(main, streams);
  return cudaGetLastError();
}
"""


class Native:
    """The loops in C++, compiled by nvcc while Python starts."""

    def __init__(self, library: Path) -> None:
        log, until = library.with_suffix(".log"), time.monotonic() + 60
        while not library.exists():
            if library.with_suffix(".failed").exists() or time.monotonic() > until:
                raise RuntimeError(f"nvcc gave no library: {log.read_text()[-300:] if log.exists() else 'no log'}")
            time.sleep(0.1)
        self._lib = ctypes.CDLL(str(library))
        torch.mm(torch.ones(16, 16, device=DEVICE), torch.ones(16, 16, device=DEVICE))
        loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
        paths = sorted(path for path in loaded if "libcublasLt.so" in path)
        if not paths:
            raise RuntimeError("cublasLt is not loaded")
        self._check(self._lib.native_open(paths[0].encode()))
        self._workspace = torch.empty(STREAMS * LT_WORKSPACE_BYTES, dtype=torch.uint8, device=DEVICE)

    def kernels(self, count: int, streams: int, x: Any) -> None:
        """Launches so many kernels that add one to `x`."""
        self._check(self._lib.native_kernels(self._stream(), count, streams, ctypes.c_void_p(x.data_ptr()), x.numel()))

    def products(self, parts: Sequence[tuple[Any, Any, Any]], streams: int, reuse: bool = False) -> Launch:
        """Returns what launches a product for each (inputs, weights, result) in bf16."""
        count = len(parts)
        (n, k), rows = parts[0][1].shape, (ctypes.c_int * count)(*(part[0].shape[0] for part in parts))
        pointers = [(ctypes.c_void_p * count)(*(part[at].data_ptr() for part in parts)) for at in range(3)]
        sizes = (ctypes.c_void_p(self._workspace.data_ptr()), ctypes.c_size_t(LT_WORKSPACE_BYTES))

        def launch(kept: Sequence[tuple[Any, Any, Any]] = parts) -> None:
            del kept  # operands live as long as what launches them
            stream = self._stream()
            self._check(self._lib.native_products(stream, count, streams, int(reuse), rows, n, k, *pointers, *sizes))

        return launch

    @staticmethod
    def _stream() -> ctypes.c_void_p:
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    @staticmethod
    def _check(error: int) -> None:
        if error:
            raise RuntimeError(f"error {error} of CUDA or cublasLt")


def compile_native(folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Starts nvcc; the library appears when it is whole."""
    source, library = folder / "native.cu", folder / "libnative.so"
    source.write_text(NATIVE_SOURCE)
    built, log, failed = library.with_suffix(".tmp"), library.with_suffix(".log"), library.with_suffix(".failed")
    flags = "-arch=sm_90 -O2 -std=c++17 -shared -Xcompiler -fPIC"
    command = f"(nvcc {flags} -o {built} {source} -ldl && mv {built} {library}) > {log} 2>&1 || touch {failed}"
    return subprocess.Popen(["/bin/sh", "-c", command]), library
