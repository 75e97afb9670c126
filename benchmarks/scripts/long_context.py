"""Few Llama layers on very long sequences, one sequence per step, with the loss computed in chunks."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

os.environ.setdefault("MASTER_ADDR", "localhost")
os.environ.setdefault("MASTER_PORT", "29512")
os.environ.setdefault("RANK", "0")
os.environ.setdefault("WORLD_SIZE", "1")


def precompute(seq, dim, base, device):
    inv_freq = base ** -(torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
    t = torch.arange(seq, device=device, dtype=torch.float32)
    freqs = torch.einsum("i,j->ij", t, inv_freq)
    return freqs.cos().bfloat16(), freqs.sin().bfloat16()


def apply_rotary(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]
    out = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return out.flatten(-2)


class Block(nn.Module):
    def __init__(self, hidden, heads, kv_heads, ffn):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, hidden // heads
        self.attn_norm = nn.RMSNorm(hidden)
        self.wq = nn.Linear(hidden, hidden, bias=False)
        self.wkv = nn.Linear(hidden, 2 * kv_heads * self.dim, bias=False)
        self.wo = nn.Linear(hidden, hidden, bias=False)
        self.mlp_norm = nn.RMSNorm(hidden)
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def attend(self, x, cos, sin):
        b, s, _ = x.shape
        q = self.wq(x).view(b, s, self.heads, self.dim).transpose(1, 2)
        k, v = self.wkv(x).view(b, s, 2 * self.kv_heads, self.dim).transpose(1, 2).chunk(2, dim=1)
        q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(out.transpose(1, 2).flatten(2))

    def forward(self, x, cos, sin):
        x = x + self.attend(self.attn_norm(x), cos, sin)
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class LongLlama(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.chunk = args.chunk
        self.embed = nn.Embedding(args.vocab, args.hidden)
        self.blocks = nn.ModuleList(Block(args.hidden, args.heads, args.kv_heads, args.ffn) for _ in range(args.layers))
        self.norm = nn.RMSNorm(args.hidden)
        self.head = nn.Linear(args.hidden, args.vocab, bias=False)

    def chunk_loss(self, x, labels):
        return F.cross_entropy(self.head(x).float(), labels, reduction="sum")

    def forward(self, ids, labels, cos, sin):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        x = self.norm(x).flatten(0, 1)
        total = x.new_zeros((), dtype=torch.float32)
        for part, wanted in zip(x.split(self.chunk), labels.flatten().split(self.chunk), strict=True):
            total = total + checkpoint(self.chunk_loss, part, wanted, use_reentrant=False)
        return total / labels.numel()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--ffn", type=int, default=14336)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--seq", type=int, default=16384)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()

    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LongLlama(args).bfloat16()
    cos, sin = precompute(args.seq, args.hidden // args.heads, 500000.0, "cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    times = []
    for step in range(args.steps):
        ids = torch.randint(args.vocab, (args.batch, args.seq), device="cuda")
        labels = torch.roll(ids, shifts=-1, dims=1)
        torch.cuda.synchronize()
        start = time.perf_counter()
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            loss = model(ids, labels, cos, sin)
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1000)
        print(f"step {step}: loss {loss.item():.3f} norm {norm.item():.3f} {times[-1]:.1f} ms", flush=True)
    tail = sorted(times[3:])
    print(f"step_ms={tail[len(tail) // 2]:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
