"""Train a Llama with tensor, sequence, pipeline and data parallelism on random tokens.

Tensors are split by DTensor (parallelize_module), stages run by torch.distributed.pipelining, data by FSDP2.

    torchrun --nproc-per-node 8 tp_pp.py --pp 2 --tp 2 --schedule Interleaved1F1B --virtual 2
    torchrun --nproc-per-node 4 tp_pp.py --device cpu --pp 2 --tp 2 --layers 4 --hidden 64 --heads 4 --kv-heads 2 \
        --ffn 128 --vocab 256 --seq 32
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor import parallel as tp


class Attention(nn.Module):
    """Causal grouped-query attention with rotary embeddings."""

    def __init__(self, args):
        super().__init__()
        self.head_dim = args.hidden // args.heads
        self.wq, self.wo = (nn.Linear(args.hidden, args.hidden, bias=False) for _ in range(2))
        self.wk, self.wv = (nn.Linear(args.hidden, args.kv_heads * self.head_dim, bias=False) for _ in range(2))

    def rotate(self, x):
        frequencies = 500000 ** (-torch.arange(0, self.head_dim, 2, device=x.device) / self.head_dim)
        angles = torch.outer(torch.arange(x.shape[2], device=x.device), frequencies)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        left, right = x.chunk(2, dim=-1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        out = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True, enable_gqa=True)
        return self.wo(out.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(args.hidden, args.ffn, bias=False) for _ in range(2))
        self.w2 = nn.Linear(args.ffn, args.hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    PLAN = {  # noqa: RUF012
        "norm1": tp.SequenceParallel(),
        "attention": tp.PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        **{f"attention.{name}": tp.ColwiseParallel() for name in ("wq", "wk", "wv")},
        "attention.wo": tp.RowwiseParallel(output_layouts=Shard(1)),
        "norm2": tp.SequenceParallel(),
        "mlp": tp.PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        **{f"mlp.{name}": tp.ColwiseParallel() for name in ("w1", "w3")},
        "mlp.w2": tp.RowwiseParallel(output_layouts=Shard(1)),
    }

    def __init__(self, args):
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(args.hidden), Attention(args)
        self.norm2, self.mlp = nn.RMSNorm(args.hidden), SwiGLU(args)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def build_stage(args, index, count, mesh):
    """Returns stage `index` of `count`: its share of the layers, and the embedding or the head at the ends."""
    stage = nn.Sequential()
    if index == 0:
        stage.add_module("embed", nn.Embedding(args.vocab, args.hidden))
    for layer in range(index * args.layers // count, (index + 1) * args.layers // count):
        stage.add_module(f"layer{layer}", Block(args))
    if index == count - 1:
        stage.add_module("norm", nn.RMSNorm(args.hidden))
        stage.add_module("head", nn.Linear(args.hidden, args.vocab, bias=False))
    stage.bfloat16()
    blocks = [module for module in stage if isinstance(module, Block)]
    if args.tp > 1:
        ends = {
            "embed": tp.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": tp.SequenceParallel(),
            "head": tp.ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
        }
        tp.parallelize_module(stage, mesh["tp"], {name: style for name, style in ends.items() if hasattr(stage, name)})
        for block in blocks:
            tp.parallelize_module(block, mesh["tp"], Block.PLAN)
    if mesh["dp"].size() > 1:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for module in (*blocks, stage):
            fully_shard(module, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=False)
    return stage


def build_schedule(args, mesh):
    """Returns the schedule over the stages of this rank, and these stages."""
    kind = get_schedule_class(args.schedule)
    multi = issubclass(kind, PipelineScheduleMulti)
    count = args.pp * args.virtual if multi else args.pp
    first = mesh.get_local_rank("pp")
    indices = range(first, count, args.pp)
    if args.schedule == "ZBVZeroBubble":  # the second stage of a rank lies on the way back
        indices = (first, count - 1 - first)
    device, group = torch.device(args.device), mesh.get_group("pp")
    with device:
        stages = [PipelineStage(build_stage(args, i, count, mesh), i, count, device, group=group) for i in indices]

    def loss(logits, targets):
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return kind(stages if multi else stages[0], n_microbatches=args.microbatches, loss_fn=loss), stages


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"layers": 32, "hidden": 4096, "heads": 32, "kv-heads": 8, "ffn": 14336, "vocab": 128256, "seq": 4096}
    defaults |= {"batch": 8, "microbatches": 8, "pp": 2, "tp": 2, "virtual": 2, "steps": 10}
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--schedule", default="1F1B", help="GPipe, 1F1B, Interleaved1F1B, InterleavedZeroBubble, ...")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    shape = (args.pp, world // (args.pp * args.tp), args.tp)
    mesh = init_device_mesh(args.device, shape, mesh_dim_names=("pp", "dp", "tp"))
    schedule, stages = build_schedule(args, mesh)
    has_first, has_last = any(stage.is_first for stage in stages), any(stage.is_last for stage in stages)
    optimizer = torch.optim.AdamW((p for stage in stages for p in stage.submod.parameters()), lr=3e-4, fused=True)
    for step in range(args.steps):
        tokens = torch.randint(args.vocab, (args.batch, args.seq + 1), device=args.device)
        start = time.perf_counter()
        inputs, target = (tokens[:, :-1],) if has_first else (), tokens[:, 1:] if has_last else None
        with tp.loss_parallel():
            schedule.step(*inputs, target=target, return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()
        if args.device == "cuda":
            torch.cuda.synchronize()
        if rank == 0:
            print(f"step {step}: {1000 * (time.perf_counter() - start):.1f} ms", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
