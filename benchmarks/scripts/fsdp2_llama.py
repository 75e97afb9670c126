"""Llama pre-training with FSDP2: fp32 weights, bf16 compute, meta-device initialization."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


@dataclass
class Config:
    layers: int = 16
    hidden: int = 2048
    heads: int = 32
    kv_heads: int = 8
    ffn: int = 8192
    vocab: int = 128256
    seq: int = 4096
    rope_theta: float = 500000.0


def rope_frequencies(head_dim: int, seq: int, theta: float, device: torch.device | None = None) -> Tensor:
    freqs = 1.0 / theta ** (torch.arange(0, head_dim, 2, device=device).float() / head_dim)
    angles = torch.outer(torch.arange(seq, device=device).float(), freqs)
    return torch.polar(torch.ones_like(angles), angles)


def apply_rope(x: Tensor, freqs: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    rotated = torch.view_as_real(pairs * freqs[None, : x.shape[1], None, :])
    return rotated.flatten(3).type_as(x)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.hidden // config.heads
        self.wq = nn.Linear(config.hidden, config.heads * self.head_dim, bias=False)
        self.wk = nn.Linear(config.hidden, config.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(config.hidden, config.kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(config.heads * self.head_dim, config.hidden, bias=False)

    def forward(self, x: Tensor, freqs: Tensor) -> Tensor:
        bsz, seq, _ = x.shape
        q = apply_rope(self.wq(x).view(bsz, seq, -1, self.head_dim), freqs)
        k = apply_rope(self.wk(x).view(bsz, seq, -1, self.head_dim), freqs)
        v = self.wv(x).view(bsz, seq, -1, self.head_dim)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        return self.wo(out.transpose(1, 2).reshape(bsz, seq, -1))


class FeedForward(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.hidden, config.ffn, bias=False)
        self.w2 = nn.Linear(config.ffn, config.hidden, bias=False)
        self.w3 = nn.Linear(config.hidden, config.ffn, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden, eps=1e-5)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.hidden, eps=1e-5)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, freqs: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), freqs)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.tok_embeddings = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(TransformerBlock(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden, eps=1e-5)
        self.output = nn.Linear(config.hidden, config.vocab, bias=False)
        freqs = rope_frequencies(config.hidden // config.heads, config.seq, config.rope_theta)
        self.register_buffer("freqs", freqs, persistent=False)

    @torch.no_grad()
    def init_weights(self) -> None:
        config = self.config
        head_dim = config.hidden // config.heads
        self.freqs.copy_(rope_frequencies(head_dim, config.seq, config.rope_theta, self.freqs.device))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.RMSNorm):
                module.reset_parameters()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.freqs)
        return self.output(self.norm(x))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Config, name))
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=4)
    return parser.parse_args()


def main() -> None:
    args = parse()
    for key, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}.items():
        os.environ.setdefault(key, value)
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("dp",))

    names = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq")
    config = Config(**{name: getattr(args, name) for name in names})
    with torch.device("meta"):
        model = Llama(config)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cuda")
    model.init_weights()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    times: list[float] = []
    for step in range(args.steps):
        tokens = torch.randint(config.vocab, (args.batch, config.seq + 1), device="cuda")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        elapsed = (time.perf_counter() - begin) * 1e3
        if step >= args.warmup:
            times.append(elapsed)
        if dist.get_rank() == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}  {elapsed:.1f} ms", flush=True)
    if dist.get_rank() == 0:
        print(f"step_ms={statistics.median(times):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
