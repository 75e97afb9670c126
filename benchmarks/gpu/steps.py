"""Whole training steps on the GPU of this machine, as JSON lines: checks of the step model that owe nothing to it.

Needs PyTorch with CUDA and nothing else: `python benchmarks/gpu/steps.py > steps.jsonl`. Parameters, gradients and
states are bf16; attention is PyTorch's own choice; times are medians of ten steps after four, by CUDA events around
forward, backward and optimizer (fused AdamW and zero_grad). `vocab` 0: layers alone, whose input wants a gradient, and
a random gradient at the end in place of a loss.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WARM_UPS, STEPS = 4, 10

LLAMA_3B = {"hidden": 3072, "ffn": 8192, "heads": 24, "kv": 8, "head_dim": 128, "style": "llama", "vocab": 32000}
GPT_1B = {"hidden": 2048, "ffn": 8192, "heads": 16, "kv": 16, "head_dim": 128, "style": "gpt", "vocab": 50304}
LLAMA_70B_TP4 = {
    "hidden": 8192,
    "ffn": 7168,
    "heads": 16,
    "kv": 2,
    "head_dim": 128,
    "style": "llama",
    "vocab": 0,
    "tp": 4,
}
PLAIN = {"recompute": "none", "compile": False}

CASES: tuple[dict[str, Any], ...] = (
    {"name": "llama-3b-12layers", "layers": 12, "seq": 4096, "mbs": 2, **LLAMA_3B, **PLAIN},
    {"name": "gpt-1.3b", "layers": 24, "seq": 2048, "mbs": 8, **GPT_1B, **PLAIN},
    {"name": "llama-3b-12layers", "layers": 12, "seq": 4096, "mbs": 4, **LLAMA_3B, **PLAIN, "recompute": "full"},
    {"name": "llama3-70b-tp4-4layers", "layers": 4, "seq": 4096, "mbs": 2, **LLAMA_70B_TP4, **PLAIN},
    {"name": "llama-3b-12layers", "layers": 12, "seq": 512, "mbs": 1, **LLAMA_3B, **PLAIN},
    {"name": "gpt-1.3b-long", "layers": 12, "seq": 16384, "mbs": 1, **GPT_1B, **PLAIN},
    {"name": "llama-3b-6layers", "layers": 6, "seq": 4096, "mbs": 2, **LLAMA_3B, **PLAIN, "compile": True},
)


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding, halves of a head rotated against each other."""
    left, right = x.chunk(2, -1)
    return x * cosine + torch.cat((-right, left), -1) * sine


class Layer(nn.Module):
    """A transformer layer: `llama` has RMSNorm, SwiGLU, rotary embeddings; `gpt` LayerNorm, GELU, biases."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        self.heads, self.kv, self.dim = case["heads"], case["kv"], case["head_dim"]
        self.llama = case["style"] == "llama"
        hidden, inner = case["hidden"], case["ffn"]
        norm = nn.RMSNorm if self.llama else nn.LayerNorm
        bias = not self.llama
        self.norm1, self.norm2 = norm(hidden), norm(hidden)
        self.qkv = nn.Linear(hidden, (self.heads + 2 * self.kv) * self.dim, bias=bias)
        self.out = nn.Linear(self.heads * self.dim, hidden, bias=bias)
        self.up = nn.Linear(hidden, (2 if self.llama else 1) * inner, bias=bias)
        self.down = nn.Linear(inner, hidden, bias=bias)

    def attend(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """Self-attention, causal."""
        batch, seq, _ = x.shape
        widths = [self.heads * self.dim, self.kv * self.dim, self.kv * self.dim]
        q, k, v = (part.view(batch, seq, -1, self.dim).transpose(1, 2) for part in self.qkv(x).split(widths, -1))
        if self.llama:
            q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv != self.heads)
        return self.out(y.transpose(1, 2).reshape(batch, seq, -1))

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """Attention and MLP, each added to what came in."""
        x = x + self.attend(self.norm1(x), cosine, sine)
        y = self.up(self.norm2(x))
        if self.llama:
            gate, up = y.chunk(2, -1)
            return x + self.down(functional.silu(gate) * up)
        return x + self.down(functional.gelu(y))


class Model(nn.Module):
    """Layers between an embedding and a head, or layers alone."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        self.recompute = case["recompute"] == "full"
        self.layers = nn.ModuleList(Layer(case) for _ in range(case["layers"]))
        self.whole = case["vocab"] > 0
        if self.whole:
            self.embedding = nn.Embedding(case["vocab"], case["hidden"])
            self.norm = (nn.RMSNorm if case["style"] == "llama" else nn.LayerNorm)(case["hidden"])
            self.head = nn.Linear(case["hidden"], case["vocab"], bias=False)
        places = torch.arange(case["seq"], dtype=torch.float32)
        angle = torch.outer(places, 1e4 ** -torch.arange(0, 1, 2 / case["head_dim"], dtype=torch.float32))
        angle = torch.cat((angle, angle), -1)
        self.register_buffer("cosine", angle.cos().bfloat16())
        self.register_buffer("sine", angle.sin().bfloat16())

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss, or the last layer's output."""
        if self.whole:
            x = self.embedding(x)
        for layer in self.layers:
            if self.recompute:
                x = checkpoint(layer, x, self.cosine, self.sine, use_reentrant=False)
            else:
                x = layer(x, self.cosine, self.sine)
        if not self.whole:
            return x
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), target.view(-1))


def measure(case: dict[str, Any], device: str = "cuda") -> dict[str, Any]:
    """The case with its times in ms and its peak memory in GiB."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model: Any = Model(case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    shape = (case["mbs"], case["seq"])
    if case["vocab"]:
        x, target = (torch.randint(0, case["vocab"], shape, device=device) for _ in range(2))
        gradient = None
    else:
        x = torch.randn(*shape, case["hidden"], device=device, dtype=torch.bfloat16).requires_grad_(True)
        target, gradient = x.detach(), torch.randn_like(x)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    run = torch.compile(model) if case["compile"] else model
    torch.cuda.reset_peak_memory_stats()
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(4)] for _ in range(WARM_UPS + STEPS)]
    for before, forward_done, backward_done, after in marks:
        before.record()
        result = run(x, target)
        forward_done.record()
        result.backward(gradient)
        backward_done.record()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        x.grad = None
        after.record()
    torch.cuda.synchronize()
    timed = marks[WARM_UPS:]
    parts = [median(marks[i].elapsed_time(marks[i + 1]) for marks in timed) for i in range(3)]
    whole = median(marks[0].elapsed_time(marks[3]) for marks in timed)
    names = ("fwd_ms", "bwd_ms", "opt_ms", "step_ms")
    times = {name: round(value, 3) for name, value in zip(names, (*parts, whole), strict=True)}
    peak = round(torch.cuda.max_memory_allocated() / 2**30, 3)
    return {**case, "params": parameters, **times, "peak_gb": peak, "ok": True}


def main() -> None:
    """Runs the cases until time is up, a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=90.0, help="begin no case after so long")
    ends_at = time.monotonic() + parser.parse_args().seconds
    for case in CASES:
        if time.monotonic() >= ends_at:
            break
        try:
            line = measure(case)
        except Exception as error:  # the other cases still count
            line = {**case, "ok": False, "error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(line), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
