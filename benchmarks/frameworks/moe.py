"""Trains a mixture of experts with expert parallelism: kinds of dispatch and of products of experts."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import Attention, Model, loss_of, parser, start, tokens_of, train
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh


class Experts(nn.Module):
    """Experts as batched weights, applied to rows that are sorted by expert."""

    def __init__(self, args, local):
        super().__init__()
        self.grouped = args.grouped
        self.up = nn.Parameter(torch.randn(local, args.hidden, args.ffn) * 0.02)
        self.down = nn.Parameter(torch.randn(local, args.ffn, args.hidden) * 0.02)

    def forward(self, rows, counts):
        if self.grouped:
            ends = counts.cumsum(0).to(torch.int32)
            return F.grouped_mm(F.silu(F.grouped_mm(rows, self.up, offs=ends)), self.down, offs=ends)
        parts = rows.split(counts.tolist())
        return torch.cat([F.silu(x @ up) @ down for x, up, down in zip(parts, self.up, self.down, strict=True)])


class MoE(nn.Module):
    """Top-k routing to experts on the ranks of a group."""

    def __init__(self, args):
        super().__init__()
        self.group, self.splits, self.top_k, self.experts = MoE.ep_group, args.splits, args.top_k, args.experts
        self.ep = dist.get_world_size(self.group)
        self.local = args.experts // self.ep
        self.router = nn.Linear(args.hidden, args.experts, bias=False)
        self.mlp = Experts(args, self.local)

    def forward(self, x):
        flat = x.flatten(0, 1)
        weights, chosen = self.router(flat).softmax(dim=-1).topk(self.top_k, dim=-1)
        order = chosen.flatten().argsort(stable=True)
        rows = flat[order // self.top_k]
        if self.splits == "fixed":
            counts = torch.full((self.local,), len(rows) // self.local, device=x.device)
            rows = all_to_all_single_autograd(rows, None, None, self.group)
            rows = all_to_all_single_autograd(self.mlp(rows, counts), None, None, self.group)
        else:
            rows = self.routed(rows, chosen)
        rows = rows * weights.flatten()[order].unsqueeze(-1).to(rows.dtype)
        return torch.zeros_like(flat).index_add(0, order // self.top_k, rows).view_as(x)

    def routed(self, rows, chosen):
        """Sends rows to the ranks of their experts, and the results back."""
        if self.splits == "histc":
            counts = torch.histc(chosen.flatten().float(), self.experts, 0, self.experts - 1).long()
        else:
            counts = chosen.flatten().bincount(minlength=self.experts)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        sent = counts.view(self.ep, -1).sum(1).tolist()
        received = arriving.view(self.ep, -1).sum(1).tolist()
        rows = all_to_all_single_autograd(rows, received, sent, self.group)
        local = torch.arange(self.local, device=rows.device).repeat(self.ep).repeat_interleave(arriving)
        by_expert = local.argsort(stable=True)
        results = self.mlp(rows[by_expert], arriving.view(self.ep, -1).sum(0))
        rows = torch.empty_like(results).index_copy(0, by_expert, results)
        return all_to_all_single_autograd(rows, sent, received, self.group)


class Block(nn.Module):
    """A layer: attention and experts."""

    def __init__(self, args):
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(args.hidden), Attention(args.hidden, args.heads)
        self.norm2, self.moe = nn.RMSNorm(args.hidden), MoE(args)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.moe(self.norm2(x))


def main():
    options = parser(__doc__)
    for name, value in {"ep": 8, "experts": 64, "top-k": 4}.items():
        options.add_argument(f"--{name}", type=int, default=value)
    options.add_argument("--splits", choices=("fixed", "bincount", "histc"), default="bincount")
    options.add_argument("--grouped", action="store_true")
    args = options.parse_args()
    _, world = start(args)
    mesh = init_device_mesh(args.device, (world // args.ep, args.ep), mesh_dim_names=("dp", "ep"))
    MoE.ep_group = mesh.get_group("ep")
    with torch.device(args.device):
        model = Model(args, Block).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        inputs, targets = tokens_of(args)
        loss_of(model(inputs), targets).backward()
        for name, parameter in model.named_parameters():
            group = mesh.get_group("dp") if ".mlp." in name else dist.group.WORLD
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, group=group)
        optimizer.step()
        optimizer.zero_grad()

    train(args, step)


if __name__ == "__main__":
    main()
