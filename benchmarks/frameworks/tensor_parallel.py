"""Trains with tensor parallelism, with or without sequence parallelism and FSDP."""

import contextlib

import torch
from common import Model, loss_of, parser, start, tokens_of, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor import parallel as tp


def divide(args, model, mesh):
    """Divides the layers and both ends of the model among the ranks of a mesh."""
    rows = {"output_layouts": Shard(1)} if args.sp else {}
    columns = tp.ColwiseParallel
    plan = {f"attention.{name}": columns() for name in ("wq", "wk", "wv")}
    plan |= {"attention.wo": tp.RowwiseParallel(**rows), "mlp.w2": tp.RowwiseParallel(**rows)}
    plan |= {f"mlp.{name}": columns() for name in ("w1", "w3")}
    if args.sp:
        gathered = tp.PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
        plan |= {"norm1": tp.SequenceParallel(), "norm2": tp.SequenceParallel(), "attention": gathered, "mlp": gathered}
    for layer in model.layers:
        tp.parallelize_module(layer, mesh, plan)
    output = {"output_layouts": Shard(-1), "use_local_output": False} if args.loss else {"output_layouts": Replicate()}
    given = {"input_layouts": Shard(1)} if args.sp else {}
    ends = {
        "embed": tp.RowwiseParallel(input_layouts=Replicate(), **rows),
        "head": columns(**given, **output),
    }
    tp.parallelize_module(model, mesh, ends | ({"norm": tp.SequenceParallel()} if args.sp else {}))


def main():
    options = parser(__doc__)
    options.add_argument("--tp", type=int, default=8)
    options.add_argument("--replicas", type=int, default=1)
    for name in ("sp", "loss", "fsdp", "clip"):
        options.add_argument(f"--{name}", action="store_true")
    args = options.parse_args()
    _, world = start(args)
    names = ("replicate", "shard", "tp")
    mesh = init_device_mesh(
        args.device, (args.replicas, world // args.tp // args.replicas, args.tp), mesh_dim_names=names
    )
    with torch.device(args.device):
        model = Model(args)
    divide(args, model, mesh["tp"])
    if args.fsdp:
        data = mesh["replicate", "shard"] if args.replicas > 1 else mesh["shard"]
        for layer in model.layers:
            fully_shard(layer, mesh=data)
        fully_shard(model, mesh=data)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=args.fsdp or args.sp)

    def step():
        inputs, targets = tokens_of(args)
        with tp.loss_parallel() if args.loss else contextlib.nullcontext():
            loss_of(model(inputs), targets).backward()
        if args.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
        optimizer.zero_grad()

    train(args, step)


if __name__ == "__main__":
    main()
