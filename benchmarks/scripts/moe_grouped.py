"""A DeepSeek-like mixture of experts: sorted tokens, grouped matrix products and one shared expert."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

grouped_mm = F.grouped_mm if hasattr(F, "grouped_mm") else torch._grouped_mm


class GroupedExperts(nn.Module):
    def __init__(self, dim: int, inner: int, experts: int):
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(experts, dim, inner))
        self.w2 = nn.Parameter(torch.empty(experts, inner, dim))
        self.w3 = nn.Parameter(torch.empty(experts, dim, inner))
        for weight in self.parameters():
            nn.init.trunc_normal_(weight, std=0.02)

    def forward(self, x: torch.Tensor, tokens_per_expert: torch.Tensor) -> torch.Tensor:
        offsets = torch.cumsum(tokens_per_expert, dim=0, dtype=torch.int32)
        x = x.bfloat16()
        hidden = F.silu(grouped_mm(x, self.w1.bfloat16(), offs=offsets))
        hidden = hidden * grouped_mm(x, self.w3.bfloat16(), offs=offsets)
        return grouped_mm(hidden, self.w2.bfloat16(), offs=offsets)


class MoE(nn.Module):
    def __init__(self, dim: int, inner: int, experts: int, top_k: int):
        super().__init__()
        self.top_k = top_k
        self.n_experts = experts
        self.router = nn.Linear(dim, experts, bias=False)
        self.experts = GroupedExperts(dim, inner, experts)
        self.shared_up = nn.Linear(dim, 2 * inner, bias=False)
        self.shared_down = nn.Linear(inner, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        scores = torch.sigmoid(self.router(flat).float())
        top_scores, indices = torch.topk(scores, self.top_k, dim=-1)
        top_scores = top_scores / top_scores.sum(-1, keepdim=True)
        order = torch.argsort(indices.view(-1), stable=True)
        counts = torch.histc(indices.view(-1).float(), bins=self.n_experts, min=0, max=self.n_experts)
        token_of = (order // self.top_k).unsqueeze(-1).expand(-1, flat.shape[-1])
        routed = torch.gather(flat, 0, token_of)
        routed = self.experts(routed, counts)
        routed = routed.float() * top_scores.view(-1)[order].unsqueeze(-1)
        gate, up = self.shared_up(flat).chunk(2, dim=-1)
        out = self.shared_down(F.silu(gate) * up)
        out = out.scatter_add(0, token_of, routed.to(out.dtype))
        return out.view_as(x)


class Block(nn.Module):
    def __init__(self, args: argparse.Namespace):
        super().__init__()
        self.n_heads = args.heads
        self.norm_attn = nn.RMSNorm(args.hidden)
        self.wqkv = nn.Linear(args.hidden, 3 * args.hidden, bias=False)
        self.wo = nn.Linear(args.hidden, args.hidden, bias=False)
        self.norm_moe = nn.RMSNorm(args.hidden)
        self.moe = MoE(args.hidden, args.ffn, args.experts, args.top_k)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        q, k, v = self.wqkv(x).view(b, s, 3 * self.n_heads, -1).transpose(1, 2).chunk(3, dim=1)
        return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, d))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_attn(x))
        return x + self.moe(self.norm_moe(x))


def train(args: argparse.Namespace) -> float:
    device = torch.device("cuda")
    with device:
        model = nn.Sequential(
            nn.Embedding(args.vocab, args.hidden),
            *[Block(args) for _ in range(args.layers)],
            nn.RMSNorm(args.hidden),
            nn.Linear(args.hidden, args.vocab, bias=False),
        ).to(torch.bfloat16)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.95), fused=True)
    times = []
    for _ in range(args.steps):
        tokens = torch.randint(args.vocab, (args.batch, args.seq + 1), device=device)
        torch.cuda.synchronize()
        start = time.perf_counter()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        opt.step()
        opt.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    tail = times[-5:]
    print("final loss", loss.item())
    return sum(tail) / len(tail) * 1000


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--ffn", type=int, default=1024)
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--top-k", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29502")
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group(backend="nccl")
    torch.manual_seed(0)
    print(f"step_ms={train(options):.3f}")
    dist.destroy_process_group()
