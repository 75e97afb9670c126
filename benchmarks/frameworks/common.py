"""Provides a Llama-like model, and the start and the loop of training, for the scripts of this folder."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Causal attention over separate projections."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.head_dim = hidden // heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """The gated MLP of Llama."""

    def __init__(self, hidden, ffn):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(hidden, ffn, bias=False) for _ in range(2))
        self.w2 = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """A layer: attention and MLP, each behind an RMSNorm."""

    def __init__(self, args):
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(args.hidden), Attention(args.hidden, args.heads)
        self.norm2, self.mlp = nn.RMSNorm(args.hidden), SwiGLU(args.hidden, args.ffn)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """Embedding, layers and head; returns logits."""

    def __init__(self, args, block=Block):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.hidden)
        self.layers = nn.ModuleList(block(args) for _ in range(args.layers))
        self.norm = nn.RMSNorm(args.hidden)
        self.head = nn.Linear(args.hidden, args.vocab, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def parser(description):
    """Returns a parser with the options of the model and of training."""
    own = argparse.ArgumentParser(description=description)
    sizes = {"layers": 4, "hidden": 1024, "heads": 16, "ffn": 2816, "vocab": 32000, "seq": 1024, "batch": 2}
    for name, value in (sizes | {"steps": 3}).items():
        own.add_argument(f"--{name}", type=int, default=value)
    own.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return own


def start(args):
    """Joins the job; returns this rank and the number of ranks."""
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    torch.manual_seed(dist.get_rank())
    return dist.get_rank(), dist.get_world_size()


def tokens_of(args):
    """Returns random tokens, and those that follow them."""
    tokens = torch.randint(args.vocab, (args.batch, args.seq + 1), device=args.device)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits, targets):
    """Returns the cross-entropy."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def train(args, step):
    """Calls `step` for every step, and prints its time."""
    for number in range(args.steps):
        if args.device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        if args.device == "cuda":
            torch.cuda.synchronize()
        if int(os.environ.get("RANK", "0")) == 0:
            print(f"step {number}: {1000 * (time.perf_counter() - begin):.1f} ms", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()
