"""Train a GPT with DistributedDataParallel, gradient accumulation and bf16 autocast on random tokens.

torchrun --nproc-per-node 8 ddp_gpt.py --layers 24 --hidden 1024 --heads 16
torchrun --nproc-per-node 2 ddp_gpt.py --device cpu --layers 2 --hidden 64 --heads 4 --seq 32 --vocab 256
"""

import argparse
import contextlib
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    """A layer of GPT-2: attention and MLP, each behind a LayerNorm."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def attention(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        return self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """GPT-2 with tied embeddings; returns the loss."""

    def __init__(self, args):
        super().__init__()
        self.tokens = nn.Embedding(args.vocab, args.hidden)
        self.positions = nn.Embedding(args.seq, args.hidden)
        self.blocks = nn.ModuleList(Block(args.hidden, args.heads) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.hidden)
        self.head = nn.Linear(args.hidden, args.vocab, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self.init_weights)

    @staticmethod
    def init_weights(module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--vocab", type=int, default=50304)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8, help="sequences per GPU and microbatch")
    parser.add_argument("--accumulate", type=int, default=4, help="microbatches per step")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return parser.parse_args()


def main():
    args = parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    if args.device == "cuda":
        torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)

    model = GPT(args).to(args.device)
    ddp = DistributedDataParallel(model, device_ids=[local_rank] if args.device == "cuda" else None)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-4, weight_decay=0.1, fused=True)

    for step in range(args.steps):
        synchronize(args.device)
        start = time.perf_counter()
        for microbatch in range(args.accumulate):
            tokens = torch.randint(args.vocab, (args.batch, args.seq + 1), device=args.device)
            last = microbatch == args.accumulate - 1
            with contextlib.nullcontext() if last else ddp.no_sync():
                with torch.autocast(args.device, dtype=torch.bfloat16):
                    loss = ddp(tokens[:, :-1], tokens[:, 1:]) / args.accumulate
                loss.backward()
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        synchronize(args.device)
        if rank == 0:
            print(f"step {step}: {1000 * (time.perf_counter() - start):.1f} ms", flush=True)
    dist.destroy_process_group()


def synchronize(device):
    """Waits until the device is idle."""
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
