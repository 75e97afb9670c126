"""Train a mixture of experts with expert parallelism: tokens go to the ranks of their experts and back.

torchrun --nproc-per-node 8 moe_ep.py --experts 64 --top-k 6 --ep 8
torchrun --nproc-per-node 4 moe_ep.py --device cpu --layers 2 --hidden 64 --heads 4 --seq 32 --vocab 256 --ep 2
"""

import argparse
import os
import time
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh


class AllToAll(torch.autograd.Function):
    """Sends `sent[i]` rows to member i of a group and receives `received[i]` rows from it."""

    @staticmethod
    def forward(ctx, rows, received, sent, group):
        ctx.received, ctx.sent, ctx.group = received, sent, group
        out = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        return AllToAll.apply(grad, ctx.sent, ctx.received, ctx.group), None, None, None


class MoE(nn.Module):
    """Top-k experts without dropped tokens, of which this rank holds `experts / ep`."""

    def __init__(self, hidden, ffn, experts, top_k, group):
        super().__init__()
        self.group, self.ep = group, dist.get_world_size(group)
        self.n_experts, self.n_local, self.top_k = experts, experts // self.ep, top_k
        self.router = nn.Linear(hidden, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, ffn), nn.GELU(), nn.Linear(ffn, hidden)) for _ in range(self.n_local)
        )

    def forward(self, x):
        flat = x.flatten(0, 1)
        weights, chosen = self.router(flat).float().softmax(dim=-1).topk(self.top_k, dim=-1)
        order = chosen.flatten().argsort(stable=True)
        tokens = order // self.top_k
        counts = chosen.flatten().bincount(minlength=self.n_experts)
        arriving = torch.empty_like(counts)  # rows for each local expert, by the rank that sends them
        dist.all_to_all_single(arriving, counts, group=self.group)
        sent = counts.view(self.ep, -1).sum(dim=1).tolist()
        received = arriving.view(self.ep, -1).sum(dim=1).tolist()
        rows = AllToAll.apply(flat[tokens], received, sent, self.group)
        local = torch.arange(self.n_local, device=x.device).repeat(self.ep).repeat_interleave(arriving)
        by_expert = local.argsort(stable=True)
        parts = rows[by_expert].split(arriving.view(self.ep, -1).sum(dim=0).tolist())
        results = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        rows = torch.empty_like(results).index_copy(0, by_expert, results)
        rows = AllToAll.apply(rows, sent, received, self.group)
        rows = rows * weights.flatten()[order].unsqueeze(-1).to(rows.dtype)
        return torch.zeros_like(flat).index_add(0, tokens, rows).view_as(x)


class Block(nn.Module):
    def __init__(self, args, group):
        super().__init__()
        self.heads = args.heads
        self.norm1, self.norm2 = nn.LayerNorm(args.hidden), nn.LayerNorm(args.hidden)
        self.qkv, self.proj = nn.Linear(args.hidden, 3 * args.hidden), nn.Linear(args.hidden, args.hidden)
        self.moe = MoE(args.hidden, args.ffn, args.experts, args.top_k, group)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.moe(self.norm2(x))


def average_gradients(model, mesh, pending):
    """Averages gradients as they become ready: those of experts over their copies, all others over all ranks."""

    def reduce(parameter, group):
        parameter.grad.div_(mesh.size())  # an expert saw the tokens of all ranks of its ep group
        pending.append(dist.all_reduce(parameter.grad, group=group, async_op=True))

    for name, parameter in model.named_parameters():
        group = mesh.get_group("dp") if ".experts." in name else dist.group.WORLD
        parameter.register_post_accumulate_grad_hook(partial(reduce, group=group))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"layers": 12, "hidden": 2048, "heads": 16, "ffn": 1408, "experts": 64, "top-k": 6, "vocab": 102400}
    for name, value in (defaults | {"seq": 4096, "batch": 2, "ep": 8, "steps": 10}).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh(args.device, (world // args.ep, args.ep), mesh_dim_names=("dp", "ep"))

    with torch.device(args.device):
        blocks = [Block(args, mesh.get_group("ep")) for _ in range(args.layers)]
        head = [nn.LayerNorm(args.hidden), nn.Linear(args.hidden, args.vocab, bias=False)]
        model = nn.Sequential(nn.Embedding(args.vocab, args.hidden), *blocks, *head).bfloat16()
    pending = []
    average_gradients(model, mesh, pending)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for step in range(args.steps):
        tokens = torch.randint(args.vocab, (args.batch, args.seq + 1), device=args.device)
        start = time.perf_counter()
        F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        while pending:
            pending.pop().wait()
        optimizer.step()
        optimizer.zero_grad()
        if args.device == "cuda":
            torch.cuda.synchronize()
        if rank == 0:
            print(f"step {step}: {1000 * (time.perf_counter() - start):.1f} ms", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
