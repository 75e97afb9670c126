#!/usr/bin/env python3
"""Supervised training of a vision transformer on random images."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def get_args_parser():
    parser = argparse.ArgumentParser("ViT training", add_help=True)
    parser.add_argument("--batch", default=64, type=int, help="images per GPU")
    parser.add_argument("--layers", default=24, type=int)
    parser.add_argument("--hidden", default=1024, type=int)
    parser.add_argument("--heads", default=16, type=int)
    parser.add_argument("--image", default=224, type=int)
    parser.add_argument("--patch", default=16, type=int)
    parser.add_argument("--classes", default=1000, type=int)
    parser.add_argument("--drop-path", default=0.1, type=float)
    parser.add_argument("--steps", default=20, type=int)
    return parser


class DropPath(nn.Module):
    def __init__(self, drop_prob):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        if self.drop_prob == 0.0 or not self.training:
            return x
        keep_prob = 1 - self.drop_prob
        random_tensor = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep_prob)
        random_tensor.div_(keep_prob)
        return x * random_tensor


class PatchEmbed(nn.Module):
    def __init__(self, image, patch, dim):
        super().__init__()
        self.num_patches = (image // patch) ** 2
        self.proj = nn.Conv2d(3, dim, kernel_size=patch, stride=patch)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


class Block(nn.Module):
    def __init__(self, dim, num_heads, drop_path):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class VisionTransformer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.patch_embed = PatchEmbed(args.image, args.patch, args.hidden)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, args.hidden))
        self.pos_embed = nn.Parameter(torch.randn(1, self.patch_embed.num_patches + 1, args.hidden) * 0.02)
        rates = torch.linspace(0, args.drop_path, args.layers).tolist()
        self.blocks = nn.Sequential(*[Block(args.hidden, args.heads, rate) for rate in rates])
        self.norm = nn.LayerNorm(args.hidden, eps=1e-6)
        self.head = nn.Linear(args.hidden, args.classes)

    def forward(self, x):
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        x = self.norm(self.blocks(x))
        return self.head(x[:, 0])


def init_distributed_mode():
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29504")
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    gpu = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(gpu)
    dist.init_process_group(backend="nccl", init_method="env://", world_size=world_size, rank=rank)
    dist.barrier()
    return gpu


def main(args):
    gpu = init_distributed_mode()
    torch.backends.cudnn.benchmark = True
    model = VisionTransformer(args).to("cuda")
    model = DistributedDataParallel(model, device_ids=[gpu])
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    images = torch.randn(args.batch, 3, args.image, args.image).pin_memory()
    labels = torch.randint(args.classes, (args.batch,)).pin_memory()

    model.train()
    meter = []
    for i in range(args.steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        image, target = images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
        with torch.amp.autocast("cuda", dtype=torch.bfloat16):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        torch.cuda.synchronize()
        meter.append(time.perf_counter() - start)
        print(f"[{i}/{args.steps}] loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e} time {meter[-1]:.4f}")
    meter = sorted(meter[args.steps // 2 :])
    print(f"step_ms={1e3 * meter[len(meter) // 2]:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(get_args_parser().parse_args())
