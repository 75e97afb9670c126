"""Switch/GShard-style MoE language model: fixed expert capacity, one-hot dispatch with einsum, dropped tokens."""

import argparse
import os
import time
from statistics import mean

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import einsum, nn


def top2_gating(logits, capacity):
    """Returns dispatch and combine tensors of shape (group, token, expert, slot) and the auxiliary loss."""
    gates = logits.float().softmax(dim=-1)
    experts = gates.shape[-1]
    mask1 = F.one_hot(gates.argmax(dim=-1), experts).float()
    without1 = gates * (1 - mask1)
    mask2 = F.one_hot(without1.argmax(dim=-1), experts).float()
    aux = (gates.mean(dim=1) * mask1.mean(dim=1)).mean() * experts * experts

    position1 = torch.cumsum(mask1, dim=1) * mask1 - mask1
    mask1 = mask1 * (position1 < capacity)
    position2 = (torch.cumsum(mask2, dim=1) + mask1.sum(dim=1, keepdim=True)) * mask2 - mask2
    mask2 = mask2 * (position2 < capacity)
    gate1 = (gates * mask1).sum(dim=-1)
    gate2 = (gates * mask2).sum(dim=-1)
    total = (gate1 + gate2).clamp_min(torch.finfo(gates.dtype).eps)

    slots1 = F.one_hot((position1 * mask1).sum(dim=-1).long(), capacity).float()
    slots2 = F.one_hot((position2 * mask2).sum(dim=-1).long().clamp_max(capacity - 1), capacity).float()
    combine = einsum("gs,gse,gsc->gsec", gate1 / total, mask1, slots1)
    combine = combine + einsum("gs,gse,gsc->gsec", gate2 / total, mask2, slots2)
    return combine.bool(), combine, aux


class MoELayer(nn.Module):
    def __init__(self, dim, inner, experts, factor):
        super().__init__()
        self.factor = factor
        self.experts = experts
        self.wg = nn.Linear(dim, experts, bias=False)
        self.wi = nn.Parameter(torch.randn(experts, dim, inner) * dim**-0.5)
        self.wo = nn.Parameter(torch.randn(experts, inner, dim) * inner**-0.5)

    def forward(self, x):
        capacity = max(4, int(2 * self.factor * x.shape[1] / self.experts))
        dispatch, combine, aux = top2_gating(self.wg(x), capacity)
        inputs = einsum("gsec,gsm->egcm", dispatch.to(x.dtype), x)
        hidden = F.relu(einsum("egcm,emh->egch", inputs, self.wi))
        outputs = einsum("egch,ehm->egcm", hidden, self.wo)
        return einsum("gsec,egcm->gsm", combine.to(x.dtype), outputs), aux


class DenseLayer(nn.Module):
    def __init__(self, dim, inner):
        super().__init__()
        self.wi = nn.Linear(dim, inner)
        self.wo = nn.Linear(inner, dim)

    def forward(self, x):
        return self.wo(F.relu(self.wi(x))), 0.0


class Block(nn.Module):
    def __init__(self, cfg, moe):
        super().__init__()
        self.ln1 = nn.LayerNorm(cfg.hidden)
        self.attn = nn.MultiheadAttention(cfg.hidden, cfg.heads, batch_first=True)
        self.ln2 = nn.LayerNorm(cfg.hidden)
        self.mlp = (
            MoELayer(cfg.hidden, cfg.ffn, cfg.experts, cfg.capacity_factor) if moe else DenseLayer(cfg.hidden, cfg.ffn)
        )

    def forward(self, x, mask):
        y = self.ln1(x)
        x = x + self.attn(y, y, y, attn_mask=mask, need_weights=False, is_causal=True)[0]
        y, aux = self.mlp(self.ln2(x))
        return x + y, aux


class SwitchLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tokens = nn.Embedding(cfg.vocab, cfg.hidden)
        self.positions = nn.Parameter(torch.zeros(cfg.seq, cfg.hidden))
        self.blocks = nn.ModuleList(Block(cfg, moe=i % 2 == 1) for i in range(cfg.layers))
        self.final = nn.LayerNorm(cfg.hidden)
        mask = nn.Transformer.generate_square_subsequent_mask(cfg.seq)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions
        aux_total = 0.0
        for block in self.blocks:
            x, aux = block(x, self.mask)
            aux_total = aux_total + aux
        return F.linear(self.final(x), self.tokens.weight), aux_total


parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=8)
parser.add_argument("--hidden", type=int, default=1024)
parser.add_argument("--heads", type=int, default=16)
parser.add_argument("--ffn", type=int, default=4096)
parser.add_argument("--experts", type=int, default=8)
parser.add_argument("--capacity-factor", type=float, default=1.25)
parser.add_argument("--vocab", type=int, default=32128)
parser.add_argument("--seq", type=int, default=1024)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--steps", type=int, default=15)
cfg = parser.parse_args()

for name, value in (("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29503"), ("RANK", "0"), ("WORLD_SIZE", "1")):
    os.environ.setdefault(name, value)
dist.init_process_group("nccl")
local_rank = int(os.environ.get("LOCAL_RANK", 0))
torch.cuda.set_device(local_rank)
torch.backends.cuda.matmul.allow_tf32 = True
model = SwitchLM(cfg).cuda()
model = nn.parallel.DistributedDataParallel(model, device_ids=[local_rank], gradient_as_bucket_view=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, foreach=True)
laps = []
for step in range(cfg.steps):
    ids = torch.randint(0, cfg.vocab, (cfg.batch, cfg.seq + 1)).cuda(non_blocking=True)
    torch.cuda.synchronize()
    t = time.perf_counter()
    with torch.autocast("cuda", torch.bfloat16):
        logits, aux = model(ids[:, :-1])
        loss = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:]) + 0.01 * aux
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    laps.append((time.perf_counter() - t) * 1e3)
    print(step, f"{loss.item():.4f}", f"{laps[-1]:.1f}ms", flush=True)
print(f"step_ms={mean(laps[-8:]):.3f}")
dist.destroy_process_group()
