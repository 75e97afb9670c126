# Llama with FSDP2 and full activation checkpointing, weights in bf16.
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu


def init_distributed():
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "12355")
    rank = int(os.environ.setdefault("RANK", "0"))
    world = int(os.environ.setdefault("WORLD_SIZE", "1"))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl", rank=rank, world_size=world)
    return rank


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return y.type_as(x) * self.weight


class Layer(nn.Module):
    def __init__(self, dim, heads, groups, inner):
        super().__init__()
        self.heads, self.groups, self.head_dim = heads, groups, dim // heads
        self.norm1, self.norm2 = RMSNorm(dim), RMSNorm(dim)
        self.qkv = nn.Linear(dim, (heads + 2 * groups) * self.head_dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.gate_up = nn.Linear(dim, 2 * inner, bias=False)
        self.down = nn.Linear(inner, dim, bias=False)

    def forward(self, x, cos, sin):
        b, s, d = x.shape
        sizes = [n * self.head_dim for n in (self.heads, self.groups, self.groups)]
        q, k, v = (
            t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(sizes, -1)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        a = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, s, d))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(silu(gate) * up)


def rotate(x, cos, sin):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.hidden)
        self.layers = nn.ModuleList(
            [Layer(args.hidden, args.heads, args.kv_heads, args.ffn) for _ in range(args.layers)]
        )
        self.norm = RMSNorm(args.hidden)
        self.head = nn.Linear(args.hidden, args.vocab, bias=False)
        self.head_dim = args.hidden // args.heads

    def forward(self, tokens):
        inv = 10000 ** (-torch.arange(0, self.head_dim, 2, device=tokens.device) / self.head_dim)
        angle = torch.arange(tokens.shape[1], device=tokens.device)[:, None] * inv
        x = self.embed(tokens)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--layers", type=int, default=16)
    p.add_argument("--hidden", type=int, default=2048)
    p.add_argument("--heads", type=int, default=16)
    p.add_argument("--kv-heads", type=int, default=8)
    p.add_argument("--ffn", type=int, default=8192)
    p.add_argument("--vocab", type=int, default=32000)
    p.add_argument("--seq", type=int, default=4096)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--steps", type=int, default=12)
    args = p.parse_args()

    rank = init_distributed()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Model(args)
    for i, layer in enumerate(model.layers):
        model.layers[i] = checkpoint_wrapper(layer)
        fully_shard(model.layers[i], mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
    fully_shard(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    durations = []
    for _ in range(args.steps):
        torch.cuda.synchronize()
        t0 = time.perf_counter()
        batch = torch.randint(0, args.vocab, (args.batch, args.seq + 1), device="cuda")
        out = model(batch[:, :-1])
        loss = cross_entropy(out.reshape(-1, args.vocab), batch[:, 1:].reshape(-1))
        loss.backward()
        opt.step()
        opt.zero_grad()
        torch.cuda.synchronize()
        durations.append(time.perf_counter() - t0)
    steady = durations[-6:]
    if rank == 0:
        print(f"loss {loss.item():.3f} step_ms={sum(steady) / len(steady) * 1000:.3f}")
    dist.destroy_process_group()
