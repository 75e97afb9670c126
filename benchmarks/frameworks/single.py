"""Trains on one GPU: kinds of optimizers, recomputation, precision, compilation and gradient accumulation."""

import contextlib
from functools import partial

import torch
from common import Model, loss_of, parser, tokens_of, train
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

OPTIMIZERS = {
    "fused": lambda p: torch.optim.AdamW(p, fused=True),
    "foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "loop": lambda p: torch.optim.AdamW(p, foreach=False),
    "default": torch.optim.Adam,
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "capturable": lambda p: torch.optim.AdamW(p, capturable=True),
    "adafactor": torch.optim.Adafactor,
    "lbfgs": torch.optim.LBFGS,
    "muon": lambda p: torch.optim.Muon([q for q in p if q.dim() == 2]),
}


def keeps_products(ctx, op, *args, **kwargs):
    """Saves the results of every second matrix product."""
    del ctx, args, kwargs
    keeps = op in (torch.ops.aten.mm.default, torch.ops.aten._scaled_dot_product_flash_attention.default)
    return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def recompute(layer, kind):
    """Makes a layer compute its activations again in the backward pass."""
    forward = layer.forward
    given = {"use_reentrant": kind == "reentrant"}
    if kind == "selective":
        given["context_fn"] = partial(create_selective_checkpoint_contexts, keeps_products)
    layer.forward = lambda x: checkpoint(forward, x, **given)


def capture(args, model, optimizer):
    """Captures a step in a CUDA graph and replays it."""
    inputs, targets = tokens_of(args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss_of(model(inputs), targets).backward()
        optimizer.step()
    train(args, graph.replay)


def main():
    options = parser(__doc__)
    options.add_argument("--optimizer", choices=OPTIMIZERS, default="fused")
    options.add_argument("--checkpoint", choices=("reentrant", "plain", "selective"))
    options.add_argument("--amp", choices=("bf16", "fp16"))
    options.add_argument("--accumulate", type=int, default=1)
    options.add_argument("--compile", choices=("model", "blocks", "decorator"))
    options.add_argument("--clip", action="store_true")
    options.add_argument("--graph", action="store_true")
    args = options.parse_args()
    model = Model(args).to(args.device)
    if args.checkpoint:
        for layer in model.layers:
            recompute(layer, args.checkpoint)
    if args.compile == "blocks":
        for layer in model.layers:
            layer.compile()
    if args.compile == "model":
        model = torch.compile(model)
    lost = torch.compile(loss_of) if args.compile == "decorator" else loss_of
    optimizer = OPTIMIZERS[args.optimizer](list(model.parameters()))
    if args.graph:
        capture(args, model, optimizer)
        return
    scaler = torch.amp.GradScaler(args.device, enabled=args.amp == "fp16")
    dtype = torch.float16 if args.amp == "fp16" else torch.bfloat16

    def closure():
        for _ in range(args.accumulate):
            inputs, targets = tokens_of(args)
            with torch.autocast(args.device, dtype=dtype) if args.amp else contextlib.nullcontext():
                loss = lost(model(inputs), targets) / args.accumulate
            scaler.scale(loss).backward()
        return loss

    def step():
        if args.optimizer == "lbfgs":
            optimizer.step(closure)
        else:
            closure()
            if args.clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad(set_to_none=True)

    train(args, step)


if __name__ == "__main__":
    main()
