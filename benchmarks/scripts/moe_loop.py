"""Mixture of experts with a loop over the experts, as in the Mixtral of many model zoos (no dropped tokens)."""

import argparse
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

os.environ.setdefault("MASTER_ADDR", "localhost")
os.environ.setdefault("MASTER_PORT", "29501")


class Expert(nn.Module):
    def __init__(self, dim, inner):
        super().__init__()
        self.w1 = nn.Linear(dim, inner, bias=False)
        self.w2 = nn.Linear(inner, dim, bias=False)
        self.w3 = nn.Linear(dim, inner, bias=False)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.w2(self.act(self.w1(x)) * self.w3(x))


class SparseMoe(nn.Module):
    def __init__(self, dim, inner, experts, top_k):
        super().__init__()
        self.top_k = top_k
        self.num_experts = experts
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList([Expert(dim, inner) for _ in range(experts)])

    def forward(self, hidden_states):
        shape = hidden_states.shape
        hidden_states = hidden_states.view(-1, shape[-1])
        router_logits = self.gate(hidden_states)
        weights = F.softmax(router_logits, dim=1, dtype=torch.float)
        weights, selected = torch.topk(weights, self.top_k, dim=-1)
        weights /= weights.sum(dim=-1, keepdim=True)
        weights = weights.to(hidden_states.dtype)
        final = torch.zeros_like(hidden_states)
        expert_mask = F.one_hot(selected, num_classes=self.num_experts).permute(2, 1, 0)
        for expert_idx in range(self.num_experts):
            idx, top_x = torch.where(expert_mask[expert_idx])
            if top_x.shape[0] == 0:
                continue
            current = hidden_states.index_select(0, top_x)
            current = self.experts[expert_idx](current) * weights[top_x, idx, None]
            final.index_add_(0, top_x, current.to(hidden_states.dtype))
        return final.view(shape), router_logits


class DecoderLayer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.heads = args.heads
        self.input_norm = nn.RMSNorm(args.hidden)
        self.qkv = nn.Linear(args.hidden, 3 * args.hidden, bias=False)
        self.o_proj = nn.Linear(args.hidden, args.hidden, bias=False)
        self.post_norm = nn.RMSNorm(args.hidden)
        self.moe = SparseMoe(args.hidden, args.ffn, args.experts, args.top_k)

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = self.qkv(self.input_norm(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attn = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(attn.transpose(1, 2).reshape(b, s, h))
        out, router_logits = self.moe(self.post_norm(x))
        return x + out, router_logits


class MoeModel(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.embed_tokens = nn.Embedding(args.vocab, args.hidden)
        self.embed_positions = nn.Embedding(args.seq, args.hidden)
        self.layers = nn.ModuleList([DecoderLayer(args) for _ in range(args.layers)])
        self.norm = nn.RMSNorm(args.hidden)
        self.lm_head = nn.Linear(args.hidden, args.vocab, bias=False)

    def load_balancing_loss(self, router_logits):
        probs = torch.cat(router_logits).float().softmax(-1)
        _, selected = torch.topk(probs, self.args.top_k, dim=-1)
        per_expert = F.one_hot(selected, self.args.experts).float().mean(dim=0)
        return torch.sum(per_expert * probs.mean(dim=0).unsqueeze(0)) * self.args.experts

    def forward(self, input_ids, labels):
        x = self.embed_tokens(input_ids) + self.embed_positions.weight[: input_ids.shape[1]]
        logits_of_layers = []
        for layer in self.layers:
            x, router_logits = layer(x)
            logits_of_layers.append(router_logits)
        logits = self.lm_head(self.norm(x))
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), labels.view(-1))
        return loss + 0.01 * self.load_balancing_loss(logits_of_layers)


def main(args):
    dist.init_process_group("nccl", rank=int(os.getenv("RANK", 0)), world_size=int(os.getenv("WORLD_SIZE", 1)))
    device = torch.device("cuda", int(os.getenv("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
    torch.manual_seed(42)

    model = MoeModel(args).to(device=device, dtype=torch.bfloat16)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index], find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    times = []
    for step in range(args.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        input_ids = torch.randint(0, args.vocab, (args.batch, args.seq)).to(device)
        labels = torch.randint(0, args.vocab, (args.batch, args.seq)).to(device)
        optimizer.zero_grad()
        loss = model(input_ids, labels)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1000)
        print(f"step {step} loss {loss.item():.3f} {times[-1]:.1f} ms")
    print(f"step_ms={np.median(times[args.steps // 2 :]):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--ffn", type=int, default=2816)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--top-k", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=14)
    main(parser.parse_args())
