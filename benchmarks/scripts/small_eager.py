"""A small model with small batches: the host decides how fast it goes."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn, optim

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--hidden", type=int, default=256)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--seq", type=int, default=64)
parser.add_argument("--features", type=int, default=32)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--steps", type=int, default=60)


class SelfAttention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)

    def split(self, x):
        return x.view(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / q.size(-1) ** 0.5
        context = torch.matmul(torch.softmax(scores, dim=-1), v)
        return self.output(context.transpose(1, 2).contiguous().view_as(x))


class Layer(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.attention = SelfAttention(hidden, heads)
        self.norm1 = nn.LayerNorm(hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden))
        self.norm2 = nn.LayerNorm(hidden)

    def forward(self, x):
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class Regressor(nn.Module):
    """Predicts the next value of a multivariate time series."""

    def __init__(self, args):
        super().__init__()
        self.embed = nn.Linear(args.features, args.hidden)
        self.layers = nn.ModuleList([Layer(args.hidden, args.heads) for _ in range(args.layers)])
        self.head = nn.Linear(args.hidden, args.features)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=1))


def main():
    args = parser.parse_args()
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29506")
    dist.init_process_group(
        "nccl", rank=int(os.environ.get("RANK", 0)), world_size=int(os.environ.get("WORLD_SIZE", 1))
    )
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(local_rank)
    device = torch.device(f"cuda:{local_rank}")

    model = Regressor(args).to(device)
    ddp = nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = optim.Adam(ddp.parameters(), lr=1e-3)
    loss_fn = nn.MSELoss()
    history = []
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(args.steps):
        x = torch.randn(args.batch, args.seq, args.features, device=device)
        y = torch.randn(args.batch, args.features, device=device)
        optimizer.zero_grad()
        loss = loss_fn(ddp(x), y)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        now = time.perf_counter()
        history.append(now - start)
        start = now
    history = sorted(history[-args.steps // 2 :])
    print(f"loss={loss.item():.4f} step_ms={history[len(history) // 2] * 1000:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
