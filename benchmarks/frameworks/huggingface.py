"""Trains Hugging Face's LlamaForCausalLM with fully_shard."""

import torch
from common import parser, start, tokens_of, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM


def main():
    options = parser(__doc__)
    options.add_argument("--attention", default="sdpa")
    options.add_argument("--checkpoint", action="store_true")
    args = options.parse_args()
    _, world = start(args)
    config = LlamaConfig(
        vocab_size=args.vocab,
        hidden_size=args.hidden,
        intermediate_size=args.ffn,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.heads // 2,
        attn_implementation=args.attention,
    )
    model = LlamaForCausalLM(config)
    if args.checkpoint:
        model.gradient_checkpointing_enable()
    mesh = init_device_mesh(args.device, (world,))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to(args.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        inputs, _ = tokens_of(args)
        model(input_ids=inputs, labels=inputs, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    train(args, step)


if __name__ == "__main__":
    main()
