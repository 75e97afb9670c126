"""A T5-like encoder-decoder written out in full: relative position bias, tied embeddings, Adafactor-free AdamW."""

import argparse
import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class T5LayerNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            x = x.to(self.weight.dtype)
        return self.weight * x


class RelativeBias(nn.Module):
    def __init__(self, heads, bidirectional, buckets=32, max_distance=128):
        super().__init__()
        self.bidirectional, self.buckets, self.max_distance = bidirectional, buckets, max_distance
        self.embedding = nn.Embedding(buckets, heads)

    def bucket(self, relative):
        buckets, result = self.buckets, 0
        if self.bidirectional:
            buckets //= 2
            result = (relative > 0).long() * buckets
            relative = relative.abs()
        else:
            relative = -torch.clamp(relative, max=0)
        exact = buckets // 2
        large = torch.log(relative.float() / exact) / math.log(self.max_distance / exact) * (buckets - exact)
        large = torch.clamp(exact + large.long(), max=buckets - 1)
        return result + torch.where(relative < exact, relative, large)

    def forward(self, queries, keys, device):
        relative = torch.arange(keys, device=device)[None, :] - torch.arange(queries, device=device)[:, None]
        return self.embedding(self.bucket(relative)).permute(2, 0, 1).unsqueeze(0)


class Attention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x, memory, bias):
        def shape(t):
            return t.view(t.shape[0], -1, self.heads, t.shape[-1] // self.heads).transpose(1, 2)

        q, k, v = shape(self.q(x)), shape(self.k(memory)), shape(self.v(memory))
        scores = torch.matmul(q, k.transpose(3, 2))
        if bias is not None:
            scores += bias
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        weights = F.dropout(weights, p=self.dropout, training=self.training)
        return self.o(torch.matmul(weights, v).transpose(1, 2).contiguous().view(x.shape))


class Layer(nn.Module):
    def __init__(self, args, decoder):
        super().__init__()
        self.norms = nn.ModuleList(T5LayerNorm(args.hidden) for _ in range(3 if decoder else 2))
        self.attention = Attention(args.hidden, args.heads, args.dropout)
        self.cross = Attention(args.hidden, args.heads, args.dropout) if decoder else None
        self.wi_0 = nn.Linear(args.hidden, args.ffn, bias=False)
        self.wi_1 = nn.Linear(args.hidden, args.ffn, bias=False)
        self.wo = nn.Linear(args.ffn, args.hidden, bias=False)
        self.dropout = nn.Dropout(args.dropout)

    def forward(self, x, bias, memory=None):
        normed = self.norms[0](x)
        x = x + self.dropout(self.attention(normed, normed, bias))
        if self.cross is not None:
            x = x + self.dropout(self.cross(self.norms[1](x), memory, None))
        y = self.norms[-1](x)
        y = F.gelu(self.wi_0(y), approximate="tanh") * self.wi_1(y)
        return x + self.dropout(self.wo(self.dropout(y)))


class Stack(nn.Module):
    def __init__(self, args, decoder):
        super().__init__()
        self.decoder = decoder
        self.bias = RelativeBias(args.heads, bidirectional=not decoder)
        self.layers = nn.ModuleList(Layer(args, decoder) for _ in range(args.layers))
        self.norm = T5LayerNorm(args.hidden)
        self.dropout = nn.Dropout(args.dropout)

    def forward(self, x, memory=None):
        length = x.shape[1]
        bias = self.bias(length, length, x.device)
        if self.decoder:
            causal = torch.full((length, length), torch.finfo(bias.dtype).min, device=x.device, dtype=bias.dtype)
            bias = bias + torch.triu(causal, diagonal=1)
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, bias, memory)
        return self.dropout(self.norm(x))


class T5(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.scale = args.hidden**-0.5
        self.shared = nn.Embedding(args.vocab, args.hidden)
        self.encoder, self.decoder = Stack(args, decoder=False), Stack(args, decoder=True)
        self.head = nn.Linear(args.hidden, args.vocab, bias=False)

    def forward(self, source, target):
        memory = self.encoder(self.shared(source))
        shifted = F.pad(target[:, :-1], (1, 0))
        logits = self.head(self.decoder(self.shared(shifted), memory) * self.scale)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def parse_args():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--layers", type=int, default=12, help="in each of the encoder and the decoder")
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--ffn", type=int, default=2048)
    parser.add_argument("--vocab", type=int, default=32128)
    parser.add_argument("--source", type=int, default=512)
    parser.add_argument("--target", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=20)
    return parser.parse_args()


def run(args):
    model = T5(args).cuda().bfloat16()
    model = nn.parallel.DistributedDataParallel(model, static_graph=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    laps = []
    for _ in range(args.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        source = torch.randint(args.vocab, (args.batch, args.source), device="cuda")
        target = torch.randint(args.vocab, (args.batch, args.target), device="cuda")
        loss = model(source, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        laps.append(time.perf_counter() - start)
    return loss.item(), sum(laps[-10:]) / len(laps[-10:])


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29510")
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group("nccl")
    loss, seconds = run(parse_args())
    print(f"loss {loss:.3f}")
    print(f"step_ms={1000 * seconds:.3f}")
    dist.destroy_process_group()
