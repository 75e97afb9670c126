"""LoRA fine-tuning: a frozen bf16 Llama of 3B parameters with trainable fp32 adapters on its attention and MLP."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int, alpha: float, dropout: float):
        super().__init__()
        self.base = base
        self.base.weight.requires_grad_(False)
        self.scaling = alpha / rank
        self.lora_dropout = nn.Dropout(dropout)
        self.lora_a = nn.Linear(base.in_features, rank, bias=False, dtype=torch.float32, device=base.weight.device)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False, dtype=torch.float32, device=base.weight.device)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        result = self.base(x)
        update = self.lora_b(self.lora_a(self.lora_dropout(x.to(self.lora_a.weight.dtype))))
        return result + (update * self.scaling).to(result.dtype)


def inject(model: nn.Module, targets: set, rank: int, alpha: float, dropout: float) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in targets and isinstance(child, nn.Linear):
                setattr(module, name, LoRALinear(child, rank, alpha, dropout))


class DecoderLayer(nn.Module):
    def __init__(self, hidden, heads, kv_heads, ffn):
        super().__init__()
        self.head_dim = hidden // heads
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)
        self.gate_proj = nn.Linear(hidden, ffn, bias=False)
        self.up_proj = nn.Linear(hidden, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, hidden, bias=False)
        self.norm1 = nn.RMSNorm(hidden, eps=1e-5)
        self.norm2 = nn.RMSNorm(hidden, eps=1e-5)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        h = self.norm1(x)
        q, k, v = (
            proj(h).view(b, s, -1, self.head_dim).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        attn = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o_proj(attn.transpose(1, 2).reshape(b, s, -1))
        h = self.norm2(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))

    @staticmethod
    def rotate(x, cos, sin):
        half = x.shape[-1] // 2
        rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * cos + rotated * sin


class CausalLM(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.head_dim = args.hidden // args.heads
        self.embed = nn.Embedding(args.vocab, args.hidden)
        self.layers = nn.ModuleList(
            DecoderLayer(args.hidden, args.heads, args.kv_heads, args.ffn) for _ in range(args.layers)
        )
        self.norm = nn.RMSNorm(args.hidden, eps=1e-5)

    def forward(self, ids):
        x = self.embed(ids)
        steps = torch.arange(0, self.head_dim, 2, device=ids.device).float() / self.head_dim
        angles = torch.arange(ids.shape[1], device=ids.device)[:, None].float() * 5e5**-steps
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.linear(self.norm(x), self.embed.weight)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--hidden", type=int, default=3072)
    parser.add_argument("--heads", type=int, default=24)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--ffn", type=int, default=8192)
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--alpha", type=float, default=32)
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--targets", default="q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj")
    parser.add_argument("--steps", type=int, default=14)
    args = parser.parse_args()

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29513")
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")

    with torch.device("cuda"):
        model = CausalLM(args).to(torch.bfloat16)
    model.requires_grad_(False)
    inject(model, set(args.targets.split(",")), args.rank, args.alpha, args.dropout)
    trainable = [p for p in model.parameters() if p.requires_grad]
    total = sum(p.numel() for p in model.parameters())
    print(f"trainable params: {sum(p.numel() for p in trainable):,} || all params: {total:,}")
    model = DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.AdamW(trainable, lr=2e-4, weight_decay=0.0)

    step_times = []
    for step in range(args.steps):
        ids = torch.randint(args.vocab, (args.batch, args.seq + 1), device="cuda")
        torch.cuda.synchronize()
        tick = time.perf_counter()
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.float().reshape(-1, args.vocab), ids[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 0.3)
        optimizer.step()
        torch.cuda.synchronize()
        step_times.append((time.perf_counter() - tick) * 1000)
        print(f"{step}: loss={loss.item():.4f} {step_times[-1]:.1f} ms")
    step_times = sorted(step_times[args.steps // 2 :])
    print(f"step_ms={step_times[len(step_times) // 2]:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
