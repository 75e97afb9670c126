// What a collective takes from a GPU, without the collective: blocks that hold SMs as NCCL's channels do, one per SM, and
// copy memory at a set pace, as fast as they can, or not at all. They run until a flag is set in the stream of the kernels
// that run beside them, so that nothing waits for the host.

#include <cuda_runtime.h>
#include <stdint.h>

#define THREADS 640  // NCCL_MAX_NTHREADS
#define UNROLL 16    // 16-byte words each thread has under way

__device__ __forceinline__ unsigned long long now_ns() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__device__ __forceinline__ uint4 load(const uint4* from) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}

__device__ __forceinline__ void store(uint4* to, uint4 v) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
}

struct State {
  volatile unsigned stop;
  unsigned arrived;
  unsigned long long copied[256 * 16];  // bytes by block, each in a line of its own
};

// pace_ns: nanoseconds from one piece to the next (0: no wait); below 0 nothing is copied.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    channel(const uint4* from, uint4* to, unsigned pieces, double pace_ns, State* state, unsigned long long limit_ns) {
  extern __shared__ int shared[];  // the block's one word of it; the rest keeps others off the SM
  volatile int& go = shared[0];
  const size_t piece = size_t(THREADS) * UNROLL;
  from += blockIdx.x * pieces * piece + threadIdx.x;
  to += blockIdx.x * pieces * piece + threadIdx.x;
  const unsigned long long start = now_ns();
  double next = double(start);
  unsigned long long copied = 0;
  unsigned at = 0;
  if (threadIdx.x == 0) atomicAdd(&state->arrived, 1);
  while (true) {
    if (threadIdx.x == 0) {
      unsigned long long now = now_ns();
      const double due = pace_ns < 0 ? double(now) + 1000 : next;
      while (double(now) < due && !state->stop) now = now_ns();
      next = fmax(next + pace_ns, double(now) - 4 * pace_ns);
      go = !state->stop && now - start < limit_ns;
    }
    __syncthreads();
    if (!go) break;
    if (pace_ns >= 0) {
      uint4 words[UNROLL];
#pragma unroll
      for (int i = 0; i < UNROLL; i++) words[i] = load(from + at * piece + i * THREADS);
#pragma unroll
      for (int i = 0; i < UNROLL; i++) store(to + at * piece + i * THREADS, words[i]);
      at = at + 1 < pieces ? at + 1 : 0;
      copied += piece * sizeof(uint4);
    }
    __syncthreads();
    if (threadIdx.x == 0) *(volatile unsigned long long*)&state->copied[blockIdx.x * 16] = copied;
  }
}

extern "C" __global__ void wait_for(State* state, unsigned blocks, unsigned long long limit_ns) {
  const unsigned long long start = now_ns();
  while (*(volatile unsigned*)&state->arrived < blocks && now_ns() - start < limit_ns);
}

// What has been copied so far, when it is now, and how many blocks there are.
extern "C" __global__ void snapshot(State* state, unsigned blocks, unsigned long long* out) {
  unsigned long long sum = 0;
  for (unsigned block = 0; block < blocks; block++) sum += *(volatile unsigned long long*)&state->copied[block * 16];
  out[0] = sum;
  out[1] = now_ns();
  out[2] = *(volatile unsigned*)&state->arrived;
}

extern "C" __global__ void raise_stop(State* state) { state->stop = 1; }

extern "C" {
int overlap_state_bytes() { return sizeof(State); }
int overlap_piece_bytes() { return THREADS * UNROLL * sizeof(uint4); }
int overlap_registers() {
  cudaFuncAttributes found;
  return cudaFuncGetAttributes(&found, channel) ? -1 : found.numRegs;
}
int overlap_start(void* stream, int blocks, int shared_bytes, void* from, void* to, int pieces, double pace_ns, void* state,
                  unsigned long long limit_ns) {
  cudaError_t error = cudaFuncSetAttribute(channel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error) return error;
  channel<<<blocks, THREADS, shared_bytes, (cudaStream_t)stream>>>((const uint4*)from, (uint4*)to, pieces, pace_ns,
                                                                   (State*)state, limit_ns);
  return cudaGetLastError();
}
int overlap_wait(void* stream, void* state, int blocks, unsigned long long limit_ns) {
  wait_for<<<1, 1, 0, (cudaStream_t)stream>>>((State*)state, blocks, limit_ns);
  return cudaGetLastError();
}
int overlap_snapshot(void* stream, void* state, int blocks, void* out) {
  snapshot<<<1, 1, 0, (cudaStream_t)stream>>>((State*)state, blocks, (unsigned long long*)out);
  return cudaGetLastError();
}
int overlap_stop(void* stream, void* state) {
  raise_stop<<<1, 1, 0, (cudaStream_t)stream>>>((State*)state);
  return cudaGetLastError();
}
}
