"""GPT with torch.compile, bf16 weights kept in fp32, single process or torchrun."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--layers", type=int, default=12)
ap.add_argument("--hidden", type=int, default=1024)
ap.add_argument("--heads", type=int, default=16)
ap.add_argument("--seq", type=int, default=1024)
ap.add_argument("--vocab", type=int, default=50304)
ap.add_argument("--batch", type=int, default=16)
ap.add_argument("--steps", type=int, default=20)
ap.add_argument("--mode", default="default")


def norm(x):
    return F.rms_norm(x, (x.size(-1),))


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.c_q = nn.Linear(dim, dim, bias=False)
        self.c_k = nn.Linear(dim, dim, bias=False)
        self.c_v = nn.Linear(dim, dim, bias=False)
        self.c_proj = nn.Linear(dim, dim, bias=False)
        self.c_proj.weight.data.zero_()

    def forward(self, x, cos, sin):
        b, t, c = x.shape
        q = self.c_q(x).view(b, t, self.heads, -1)
        k = self.c_k(x).view(b, t, self.heads, -1)
        v = self.c_v(x).view(b, t, self.heads, -1)
        q, k = rotary(norm(q), cos, sin), rotary(norm(k), cos, sin)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


def rotary(x, cos, sin):
    d = x.size(3) // 2
    x1, x2 = x[..., :d], x[..., d:]
    return torch.cat([x1 * cos + x2 * sin, x2 * cos - x1 * sin], 3).type_as(x)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attn = Attention(dim, heads)
        self.c_fc = nn.Linear(dim, 4 * dim, bias=False)
        self.c_proj = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attn(norm(x), cos, sin)
        return x + self.c_proj(F.relu(self.c_fc(norm(x))).square())


class GPT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.wte = nn.Embedding(cfg.vocab, cfg.hidden)
        self.blocks = nn.ModuleList([Block(cfg.hidden, cfg.heads) for _ in range(cfg.layers)])
        self.lm_head = nn.Linear(cfg.hidden, cfg.vocab, bias=False)
        dim = cfg.hidden // cfg.heads
        angle = torch.outer(torch.arange(cfg.seq).float(), 1e4 ** (-torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("cos", angle.cos()[None, :, None].bfloat16(), persistent=False)
        self.register_buffer("sin", angle.sin()[None, :, None].bfloat16(), persistent=False)

    def forward(self, idx, target):
        x = norm(self.wte(idx))
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.lm_head(norm(x)).float()
        logits = 30 * torch.tanh(logits / 30)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), target.view(-1))


if __name__ == "__main__":
    cfg = ap.parse_args()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29505")
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    model = GPT(cfg).to(device)
    model = torch.compile(model, mode=cfg.mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    x = torch.randint(cfg.vocab, (cfg.batch, cfg.seq), device=device)
    y = torch.roll(x, -1, dims=1)
    elapsed = []
    for step in range(cfg.steps):
        torch.cuda.synchronize()
        t0 = time.perf_counter()
        with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
            loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        elapsed.append((time.perf_counter() - t0) * 1000)
        print(f"step:{step + 1}/{cfg.steps} train_loss:{loss.item():.4f} step_time:{elapsed[-1]:.2f}ms", flush=True)
    tail = sorted(elapsed[-10:])
    print(f"step_ms={tail[len(tail) // 2]:.3f}")
    dist.destroy_process_group()
