"""Train a Llama with FSDP2 (fully_shard) in mixed precision on random tokens.

torchrun --nproc-per-node 8 llama_fsdp2.py --size 8b --checkpoint
torchrun --nproc-per-node 2 llama_fsdp2.py --device cpu --size tiny --seq 64
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

SIZES = {
    "8b": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256},
    "1b": {"layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 128256},
    "tiny": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 512},
}


def rotate(x, cos, sin):
    """Applies rotary position embeddings to (batch, heads, sequence, head dim)."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class Block(nn.Module):
    """A layer of Llama: grouped-query attention and SwiGLU, each behind an RMSNorm."""

    def __init__(self, hidden, heads, kv_heads, ffn):
        super().__init__()
        self.head_dim = hidden // heads
        kv = kv_heads * self.head_dim
        self.norm1, self.norm2 = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        self.wq, self.wo = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.wk, self.wv = nn.Linear(hidden, kv, bias=False), nn.Linear(hidden, kv, bias=False)
        self.w1, self.w3 = nn.Linear(hidden, ffn, bias=False), nn.Linear(hidden, ffn, bias=False)
        self.w2 = nn.Linear(ffn, hidden, bias=False)

    def attention(self, x, cos, sin):
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(out.transpose(1, 2).flatten(2))

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        y = self.norm2(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Llama(nn.Module):
    def __init__(self, layers, hidden, heads, kv_heads, ffn, vocab, checkpointed=False):
        super().__init__()
        self.head_dim, self.checkpointed = hidden // heads, checkpointed
        self.embed = nn.Embedding(vocab, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads, kv_heads, ffn) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden, eps=1e-5)
        self.head = nn.Linear(hidden, vocab, bias=False)

    def init_weights(self):
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.RMSNorm):
                nn.init.ones_(module.weight)

    def forward(self, tokens):
        x = self.embed(tokens)
        frequencies = 500000 ** (-torch.arange(0, self.head_dim, 2, device=tokens.device) / self.head_dim)
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device), frequencies)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = checkpoint(block, x, cos, sin, use_reentrant=False) if self.checkpointed else block(x, cos, sin)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="8b")
    parser.add_argument("--layers", type=int, help="layers, if not those of the size")
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=1, help="sequences per GPU")
    parser.add_argument("--checkpoint", action="store_true", help="recompute activations in the backward pass")
    parser.add_argument("--replicas", type=int, default=1, help="more than one: shard within, replicate across (HSDP)")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    synchronize = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh(args.device, (args.replicas, world // args.replicas), mesh_dim_names=("replicate", "shard"))
    mesh = mesh if args.replicas > 1 else mesh["shard"]

    size = SIZES[args.size] | ({"layers": args.layers} if args.layers else {})
    with torch.device("meta"):
        model = Llama(**size, checkpointed=args.checkpoint)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=args.device)
    model.init_weights()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)

    for step in range(args.steps):
        synchronize()
        start = time.perf_counter()
        tokens = torch.randint(size["vocab"], (args.batch, args.seq + 1), device=args.device)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        synchronize()
        if rank == 0:
            print(f"step {step}: {1000 * (time.perf_counter() - start):.1f} ms", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
