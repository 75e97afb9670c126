"""Trains with DistributedDataParallel and its options."""

import contextlib
import os

import torch
import torch.distributed as dist
from common import Model, loss_of, parser, start, tokens_of, train
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def mean_hook(state, bucket):
    """A hook as users write them."""
    del state
    sent = bucket.buffer().half()
    return dist.all_reduce(sent, async_op=True).get_future().then(lambda future: future.value()[0].float())


class WithUnused(Model):
    """A model with a head that its forward does not use, and a buffer."""

    def __init__(self, args):
        super().__init__(args)
        self.spare = nn.Linear(args.hidden, args.hidden)
        self.register_buffer("seen", torch.zeros(1024))


def main():
    options = parser(__doc__)
    for name in ("unused", "views", "static", "zero", "autocast", "sync-bn"):
        options.add_argument(f"--{name}", action="store_true")
    options.add_argument("--accumulate", type=int, default=1)
    options.add_argument("--hook", choices=("bf16", "fp16", "allreduce", "powersgd", "own"))
    args = options.parse_args()
    start(args)
    model = (WithUnused if args.unused else Model)(args).to(args.device)
    if args.sync_bn:
        model.norm = nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(args.hidden), nn.Unflatten(0, (args.batch, -1)))
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model.to(args.device))
    ddp = DistributedDataParallel(
        model,
        device_ids=[int(os.environ["LOCAL_RANK"])] if args.device == "cuda" else None,
        find_unused_parameters=args.unused,
        gradient_as_bucket_view=args.views,
        static_graph=args.static,
    )
    hooks = {
        "bf16": default_hooks.bf16_compress_hook,
        "fp16": default_hooks.fp16_compress_hook,
        "allreduce": default_hooks.allreduce_hook,
        "own": mean_hook,
    }
    if args.hook == "powersgd":
        ddp.register_comm_hook(powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook)
    elif args.hook:
        ddp.register_comm_hook(None, hooks[args.hook])
    if args.zero:
        optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.AdamW, lr=1e-4)
    else:
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4)

    def step():
        for micro in range(args.accumulate):
            inputs, targets = tokens_of(args)
            with ddp.no_sync() if micro < args.accumulate - 1 else contextlib.nullcontext():
                with torch.autocast(args.device, torch.bfloat16, enabled=args.autocast):
                    loss = loss_of(ddp(inputs), targets)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    train(args, step)


if __name__ == "__main__":
    main()
