"""Trains with FSDP: fully_shard on meshes of one or two dimensions, and FullyShardedDataParallel."""

import functools

import torch
from common import Block, Model, loss_of, parser, start, tokens_of, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.utils.checkpoint import checkpoint


def shard(args, world):
    """Returns the model, sharded by fully_shard."""
    shape = (args.replicas, world // args.replicas)
    mesh = init_device_mesh(args.device, shape, mesh_dim_names=("replicate", "shard"))
    mesh = mesh if args.replicas > 1 else mesh["shard"]
    reshard = {"yes": True, "no": False}.get(args.reshard) if not args.reshard.isdigit() else int(args.reshard)
    given = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
    if args.offload:
        given["offload_policy"] = CPUOffloadPolicy()
    with torch.device("cpu" if args.offload else "meta"):
        model = Model(args)
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=reshard, **given)
    fully_shard(model, reshard_after_forward=reshard, **given)
    if not args.offload:
        model.to_empty(device=args.device)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return model


def wrap(args, strategy):
    """Returns the model in FullyShardedDataParallel."""
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return FullyShardedDataParallel(
        Model(args).to(args.device),
        auto_wrap_policy=policy,
        sharding_strategy=ShardingStrategy[strategy],
        mixed_precision=MixedPrecision(torch.bfloat16, torch.float32),
        device_id=torch.cuda.current_device() if args.device == "cuda" else None,
        use_orig_params=args.original,
    )


def main():
    options = parser(__doc__)
    options.add_argument("--replicas", type=int, default=1)
    options.add_argument("--reshard", default="yes", help="yes, no, or the ranks of the smaller mesh")
    options.add_argument("--offload", action="store_true")
    options.add_argument("--checkpoint", action="store_true")
    options.add_argument("--accumulate", type=int, default=1)
    options.add_argument("--clip", action="store_true")
    options.add_argument("--strategy", help="of FullyShardedDataParallel, which is used then")
    options.add_argument("--original", action="store_true")
    args = options.parse_args()
    _, world = start(args)
    model = wrap(args, args.strategy) if args.strategy else shard(args, world)
    if args.checkpoint:
        for layer in model.layers:
            layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        for micro in range(args.accumulate):
            if not args.strategy and args.accumulate > 1:
                model.set_requires_gradient_sync(micro == args.accumulate - 1)
            inputs, targets = tokens_of(args)
            loss_of(model(inputs), targets).backward()
        if args.clip and args.strategy:
            model.clip_grad_norm_(1.0)
        elif args.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    train(args, step)


if __name__ == "__main__":
    main()
