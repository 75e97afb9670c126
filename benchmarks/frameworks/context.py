"""Trains with context parallelism: sequences are divided, keys and values go around a ring or are gathered."""

import torch
from common import Model, loss_of, parser, start, tokens_of, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.nn.attention import SDPBackend, sdpa_kernel


def main():
    options = parser(__doc__)
    options.add_argument("--cp", type=int, default=4)
    options.add_argument("--rotate", choices=("allgather", "alltoall"), default="allgather")
    args = options.parse_args()
    _, world = start(args)
    mesh = init_device_mesh(args.device, (world // args.cp, args.cp), mesh_dim_names=("dp", "cp"))
    set_rotate_method(args.rotate)
    with torch.device(args.device):
        model = Model(args).bfloat16()
    both = mesh["dp", "cp"]._flatten("dp_cp")
    for layer in model.layers:
        fully_shard(layer, mesh=both)
    fully_shard(model, mesh=both)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        inputs, targets = tokens_of(args)
        divided = context_parallel(mesh["cp"], buffers=[inputs, targets], buffer_seq_dims=[1, 1])
        with divided, sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            loss_of(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    train(args, step)


if __name__ == "__main__":
    main()
