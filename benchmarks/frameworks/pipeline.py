"""Trains a pipeline by any schedule of torch.distributed.pipelining, with shapes given or inferred."""

import torch
from common import Block, loss_of, parser, start, tokens_of, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.nn.parallel import DistributedDataParallel


def build(args, index, count):
    """Returns a stage: its share of the layers, and the embedding or the head at the ends."""
    stage = nn.Sequential()
    if index == 0:
        stage.append(nn.Embedding(args.vocab, args.hidden))
    stage.extend([Block(args) for _ in range(args.layers // count)])
    if index == count - 1:
        stage.extend([nn.RMSNorm(args.hidden), nn.Linear(args.hidden, args.vocab, bias=False)])
    return stage.to(args.device)


def shapes(args, index, count):
    """Returns examples of the inputs and outputs of a stage, and of their gradients."""
    rows = (args.batch // args.microbatches, args.seq)
    hidden = torch.empty(*rows, args.hidden, device="meta", requires_grad=True)
    tokens = torch.empty(*rows, dtype=torch.long, device="meta")
    logits = torch.empty(*rows, args.vocab, device="meta", requires_grad=True)
    first, last = index == 0, index == count - 1
    return {
        "input_args": (tokens if first else hidden,),
        "output_args": (logits if last else hidden,),
        "input_grads": None if first else (hidden.detach(),),
        "output_grads": None if last else (hidden.detach(),),
    }


def main():
    options = parser(__doc__)
    options.set_defaults(layers=16, batch=16)
    options.add_argument("--pp", type=int, default=4)
    options.add_argument("--microbatches", type=int, default=16)
    options.add_argument("--schedule", default="1F1B")
    options.add_argument("--static", action="store_true", help="give the shapes between stages")
    options.add_argument("--ddp", action="store_true")
    args = options.parse_args()
    _, world = start(args)
    mesh = init_device_mesh(args.device, (args.pp, world // args.pp), mesh_dim_names=("pp", "dp"))
    kind = get_schedule_class(args.schedule)
    multi = issubclass(kind, PipelineScheduleMulti)
    count, position = args.pp * (2 if multi else 1), mesh.get_local_rank("pp")
    indices = list(range(position, count, args.pp))
    if args.schedule in ("ZBVZeroBubble", "DualPipeV"):  # the second stage of a rank lies on the way back
        indices = [position, count - 1 - position]
    stages = []
    for index in indices:
        module = build(args, index, count)
        if args.ddp:
            module = DistributedDataParallel(module, process_group=mesh.get_group("dp"))
        given = shapes(args, index, count) if args.static else {}
        device = torch.device(args.device)
        stages.append(PipelineStage(module, index, count, device, group=mesh.get_group("pp"), **given))
    schedule = kind(stages if multi else stages[0], n_microbatches=args.microbatches, loss_fn=loss_of)
    parameters = [parameter for stage in stages for parameter in stage.submod.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)

    def step():
        inputs, targets = tokens_of(args)
        given = (inputs,) if 0 in indices else ()
        schedule.step(*given, target=targets if count - 1 in indices else None, return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()

    train(args, step)


if __name__ == "__main__":
    main()
