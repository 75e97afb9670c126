"""BERT pre-training (masked tokens) with torch.nn's encoder, dropout, padding masks and fp16 with loss scaling."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler, autocast

IGNORE = -100


class Bert(nn.Module):
    def __init__(self, vocab, hidden, heads, ffn, layers, seq, dropout):
        super().__init__()
        self.word = nn.Embedding(vocab, hidden, padding_idx=0)
        self.position = nn.Embedding(seq, hidden)
        self.segment = nn.Embedding(2, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(hidden, heads, ffn, dropout, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.transform = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.LayerNorm(hidden))
        self.decoder = nn.Linear(hidden, vocab)
        self.decoder.weight = self.word.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, segments):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.word(tokens) + self.position(positions) + self.segment(segments)
        x = self.dropout(self.norm(x))
        x = self.encoder(x, src_key_padding_mask=tokens.eq(0))
        return self.decoder(self.transform(x))


def make_batch(args, device):
    tokens = torch.randint(5, args.vocab, (args.batch, args.seq), device=device)
    lengths = torch.randint(args.seq // 2, args.seq + 1, (args.batch, 1), device=device)
    padding = torch.arange(args.seq, device=device)[None] >= lengths
    masked = (torch.rand(args.batch, args.seq, device=device) < 0.15) & ~padding
    labels = torch.where(masked, tokens, IGNORE)
    tokens = tokens.masked_fill(masked, 4).masked_fill(padding, 0)
    segments = (torch.arange(args.seq, device=device)[None] >= lengths // 2).long()
    return tokens, segments, labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--ffn", type=int, default=3072)
    parser.add_argument("--vocab", type=int, default=30528)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()

    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29509")
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    dist.init_process_group("nccl")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    torch.manual_seed(dist.get_rank())

    net = Bert(args.vocab, args.hidden, args.heads, args.ffn, args.layers, args.seq, args.dropout).to(device)
    net = nn.parallel.DistributedDataParallel(net, device_ids=[local_rank])
    loss_fn = nn.CrossEntropyLoss(ignore_index=IGNORE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.01)
    scaler = GradScaler("cuda")

    samples = []
    for step in range(args.steps):
        tokens, segments, labels = make_batch(args, device)
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad()
        with autocast("cuda", dtype=torch.float16):
            scores = net(tokens, segments)
            loss = loss_fn(scores.view(-1, args.vocab), labels.view(-1))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        torch.cuda.synchronize()
        samples.append(1e3 * (time.perf_counter() - start))
        if dist.get_rank() == 0 and step % 5 == 4:
            print(f"step {step + 1} loss {loss.item():.3f} scale {scaler.get_scale():.0f} time {samples[-1]:.2f} ms")
    if dist.get_rank() == 0:
        print(f"step_ms={torch.tensor(samples[-10:]).median().item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
