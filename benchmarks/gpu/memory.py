"""Memory of training steps on the GPU of this machine, as JSON lines: allocated, reserved, and used in all.

Needs PyTorch with CUDA and nothing else: `python benchmarks/gpu/memory.py > memory.jsonl`. Every case runs in a process
of its own, so that the allocator and the CUDA context begin empty. `peak_gb` is the most that was allocated,
`reserved_gb` what the caching allocator had then reserved at most, `used_gb` what the driver counts as used on the GPU
after the steps (as nvidia-smi), `requested_gb` the most that was allocated before blocks were rounded up; all in GiB.
The first line describes the process: what the CUDA context takes, what the first product and attention add to it.

Recompute modules have the names and the meaning of Megatron-core: `layernorm`, `mla_up_proj` and `moe_act` drop the
output of the module too, which is computed again before the backward of the module that uses it.
`--snapshot FILE` writes the allocator's snapshot of one small case instead; `--communicator` measures what NCCL takes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from steps import GPT_1B as GPT
from steps import LLAMA_3B as LLAMA
from steps import rotate
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

GIB = 2**30
STEPS = 4
MIN_OFFLOADED = 1 << 20

MLA = {
    "hidden": 2048,
    "ffn": 8192,
    "heads": 16,
    "kv": 16,
    "head_dim": 128,
    "style": "llama",
    "vocab": 32000,
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "nope_dim": 64,
    "rope_dim": 64,
    "v_dim": 128,
}
MOE = {
    "hidden": 2048,
    "ffn": 1408,
    "heads": 16,
    "kv": 16,
    "head_dim": 128,
    "style": "llama",
    "vocab": 32000,
    "experts": 16,
    "topk": 4,
    "expert_ffn": 1408,
    "shared_ffn": 2816,
}
SMALL = {**LLAMA, "layers": 12, "seq": 4096, "mbs": 2}
LATENT = {**MLA, "layers": 12, "seq": 4096, "mbs": 2}
MIXTURE = {**MOE, "layers": 8, "seq": 4096, "mbs": 2}

CASES: tuple[dict[str, Any], ...] = (
    {"name": "llama-3b-12layers", **SMALL},
    {"name": "llama-3b-12layers", **SMALL, "recompute_modules": ["layernorm"]},
    {"name": "llama-3b-12layers", **SMALL, "recompute_modules": ["mlp"]},
    {"name": "llama-3b-12layers", **SMALL, "recompute_modules": ["core_attn", "mlp"]},
    {"name": "gpt-1.3b-12layers", **GPT, "layers": 12, "seq": 2048, "mbs": 8, "recompute_modules": ["mlp"]},
    {"name": "llama-3b-12layers", **SMALL, "offload_layers": 4},
    {"name": "llama-3b-12layers", **SMALL, "offload_layers": 10},
    {"name": "llama-3b-12layers", **SMALL, "master_dtype": "fp32", "moment_dtype": "fp32"},
    {"name": "gpt-1.3b-6layers", **GPT, "layers": 6, "seq": 2048, "mbs": 4, "param_dtype": "fp32"},
    {"name": "mla-12layers", **LATENT},
    {"name": "mla-12layers", **LATENT, "recompute_modules": ["mla_up_proj"]},
    {"name": "mla-12layers", **LATENT, "recompute_modules": ["layernorm", "mla_up_proj"]},
    {"name": "moe-8layers", **MIXTURE},
    {"name": "moe-8layers", **MIXTURE, "recompute_modules": ["moe_act"]},
    {"name": "moe-8layers", **MIXTURE, "recompute_modules": ["layernorm", "moe_act"]},
    {"name": "moe-8layers", **MIXTURE, "recompute_modules": ["shared_experts"]},
    {"name": "moe-8layers", **MIXTURE, "recompute_modules": ["moe"]},
    {"name": "llama-3b-long", **LLAMA, "layers": 12, "seq": 32768, "mbs": 1, "recompute": "full"},
    {"name": "llama-3b-long", **LLAMA, "layers": 6, "seq": 16384, "mbs": 1, "recompute_modules": ["mlp"]},
)
NO_CHANGES = {"recompute": "none", "compile": False}


class _Dropped(torch.autograd.Function):
    """Runs a function without keeping anything but its inputs; `WithoutOutput` runs it again for the backward."""

    @staticmethod
    def forward(ctx: Any, owner: WithoutOutput, *inputs: torch.Tensor) -> Any:
        with torch.no_grad():
            outputs = owner.function(*inputs)
        ctx.owner = owner
        ctx.save_for_backward(*inputs)
        owner.context = ctx
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        owner = ctx.owner
        inputs, outputs = owner.inputs, owner.outputs
        torch.autograd.backward(outputs, gradients)
        owner.inputs = owner.outputs = owner.context = ()
        return (None, *(tensor.grad for tensor in inputs))


class WithoutOutput:
    """Computes a function whose results other modules keep; their storage is freed until the backward needs it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.results: tuple[torch.Tensor, ...] = ()
        self.inputs: Any = ()
        self.outputs: Any = ()
        self.context: Any = None

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """Runs the function."""
        results = _Dropped.apply(self, *inputs)
        self.results = results if isinstance(results, tuple) else (results,)
        return results

    def drop_until(self, hook_tensor: torch.Tensor) -> None:
        """Frees the results; they are computed again when the gradient of `hook_tensor` arrives."""
        for result in self.results:
            result.untyped_storage().resize_(0)
        if hook_tensor.requires_grad:
            hook_tensor.register_hook(self._again)

    def _again(self, _: torch.Tensor) -> None:
        inputs = tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in self.context.saved_tensors)
        with torch.enable_grad():
            outputs = self.function(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        for result, output in zip(self.results, outputs, strict=True):
            storage = output.untyped_storage()
            with torch.no_grad():
                result.untyped_storage().resize_(storage.nbytes())
                result.untyped_storage().copy_(storage)
        self.inputs, self.outputs, self.results = inputs, outputs, ()


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of [batch, heads, tokens, size]."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class Attention(nn.Module):
    """Grouped-query attention without its norm."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        self.heads, self.kv, self.dim = case["heads"], case["kv"], case["head_dim"]
        self.llama, bias = case["style"] == "llama", case["style"] != "llama"
        self.qkv = nn.Linear(case["hidden"], (self.heads + 2 * self.kv) * self.dim, bias=bias)
        self.out = nn.Linear(self.heads * self.dim, case["hidden"], bias=bias)
        self.again = "core_attn" in case["recompute_modules"]

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """Returns what is added to the residual stream."""
        batch, seq, _ = x.shape
        widths = [self.heads * self.dim, self.kv * self.dim, self.kv * self.dim]
        q, k, v = (part.view(batch, seq, -1, self.dim).transpose(1, 2) for part in self.qkv(x).split(widths, -1))
        if self.llama:
            q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        y = checkpoint(attend, q, k, v, use_reentrant=False) if self.again else attend(q, k, v)
        return self.out(y.transpose(1, 2).reshape(batch, seq, -1))


class LatentAttention(nn.Module):
    """Multi-head latent attention without its norm (DeepSeek V2, arXiv:2405.04434)."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        self.heads, self.nope, self.rope, self.v = (case[key] for key in ("heads", "nope_dim", "rope_dim", "v_dim"))
        q_rank, kv_rank, hidden = case["q_lora_rank"], case["kv_lora_rank"], case["hidden"]
        self.q_down = nn.Linear(hidden, q_rank, bias=False)
        self.kv_down = nn.Linear(hidden, kv_rank + self.rope, bias=False)
        self.q_norm, self.kv_norm = nn.RMSNorm(q_rank), nn.RMSNorm(kv_rank)
        self.q_up = nn.Linear(q_rank, self.heads * (self.nope + self.rope), bias=False)
        self.kv_up = nn.Linear(kv_rank, self.heads * (self.nope + self.v), bias=False)
        self.out = nn.Linear(self.heads * self.v, hidden, bias=False)
        self.again = "mla_up_proj" in case["recompute_modules"]
        self.tables: tuple[torch.Tensor, ...] = ()

    def up(self, q: torch.Tensor, kv: torch.Tensor, k_rope: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns queries, keys and values from the latents."""
        batch, seq, _ = q.shape
        cosine, sine = (table[:, None] for table in self.tables)
        queries = self.q_up(self.q_norm(q)).view(batch, seq, self.heads, -1)
        both = self.kv_up(self.kv_norm(kv)).view(batch, seq, self.heads, -1)
        q_nope, q_rope = queries.split([self.nope, self.rope], -1)
        k_nope, values = both.split([self.nope, self.v], -1)
        queries = torch.cat((q_nope, rotate(q_rope, cosine, sine)), -1)
        turned = rotate(k_rope.view(batch, seq, 1, -1), cosine, sine)
        keys = torch.cat((k_nope, turned.expand(-1, -1, self.heads, -1)), -1)
        return queries, keys, values.contiguous()

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """Returns what is added to the residual stream."""
        batch, seq, _ = x.shape
        self.tables = (cosine, sine)
        q = self.q_down(x)
        kv, k_rope = (part.contiguous() for part in self.kv_down(x).split([self.kv_norm.weight.numel(), self.rope], -1))
        without = WithoutOutput(self.up) if self.again and torch.is_grad_enabled() else None
        queries, keys, values = (without or self.up)(q, kv, k_rope)
        y = attend(*(part.transpose(1, 2) for part in (queries, keys, values)))
        if without is not None:
            without.drop_until(y)
        return self.out(y.transpose(1, 2).reshape(batch, seq, -1))


class Mlp(nn.Module):
    """A dense feed-forward layer without its norm."""

    def __init__(self, case: dict[str, Any], ffn: int) -> None:
        super().__init__()
        self.llama, bias = case["style"] == "llama", case["style"] != "llama"
        self.up = nn.Linear(case["hidden"], (2 if self.llama else 1) * ffn, bias=bias)
        self.down = nn.Linear(ffn, case["hidden"], bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what is added to the residual stream."""
        y = self.up(x)
        if not self.llama:
            return self.down(functional.gelu(y))
        gate, up = y.chunk(2, -1)
        return self.down(functional.silu(gate) * up)


class Experts(nn.Module):
    """Routed and shared experts without their norm. Tokens are spread evenly, whatever the router's scores are."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        self.count, self.topk, hidden, ffn = case["experts"], case["topk"], case["hidden"], case["expert_ffn"]
        self.router = nn.Linear(hidden, self.count, bias=False)
        self.up = nn.Parameter(torch.randn(self.count, hidden, 2 * ffn) * 0.02)
        self.down = nn.Parameter(torch.randn(self.count, ffn, hidden) * 0.02)
        self.shared = Mlp(case, case["shared_ffn"]) if case.get("shared_ffn") else None
        modules = case["recompute_modules"]
        self.act_again, self.shared_again = "moe_act" in modules, "shared_experts" in modules

    def activate(self, y: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Returns the gated activation times the router's weight of each row."""
        gate, up = y.chunk(2, -1)
        return functional.silu(gate) * up * weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what is added to the residual stream."""
        shape, rows = x.shape, x.reshape(-1, x.shape[-1])
        added = None
        if self.shared is not None:
            added = checkpoint(self.shared, rows, use_reentrant=False) if self.shared_again else self.shared(rows)
        scores = self.router(rows).float().softmax(-1)
        tokens = rows.shape[0]
        each = torch.arange(tokens * self.topk, device=x.device)
        chosen = (each % self.count).view(tokens, self.topk)
        order = chosen.flatten().argsort(stable=True)
        token = order // self.topk
        weights = scores.gather(1, chosen).flatten()[order, None].to(x.dtype)
        ends = torch.arange(1, self.count + 1, device=x.device, dtype=torch.int32) * (tokens * self.topk // self.count)
        arrived = rows.index_select(0, token)
        y = torch._grouped_mm(arrived, self.up, offs=ends)
        without = WithoutOutput(self.activate) if self.act_again and torch.is_grad_enabled() else None
        product = (without or self.activate)(y, weights)
        back = torch._grouped_mm(product, self.down, offs=ends)
        if without is not None:
            without.drop_until(back)
        # A scatter keeps its index alone; PyTorch's index_add would keep `back` too.
        out = torch.zeros_like(rows).scatter_add(0, token[:, None].expand_as(back), back)
        return (out if added is None else out + added).view(shape)


class Layer(nn.Module):
    """A transformer layer whose modules may be recomputed one by one."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        norm = nn.RMSNorm if case["style"] == "llama" else nn.LayerNorm
        self.norm1, self.norm2 = norm(case["hidden"]), norm(case["hidden"])
        self.attention = LatentAttention(case) if case.get("kv_lora_rank") else Attention(case)
        self.mlp = Experts(case) if case.get("experts") else Mlp(case, case["ffn"])
        self.modules_again = set(case["recompute_modules"])

    def _normed(self, norm: nn.Module, x: torch.Tensor, branch: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        if "layernorm" not in self.modules_again or not torch.is_grad_enabled():
            return branch(norm(x))
        without = WithoutOutput(norm)
        result = branch(without(x))
        without.drop_until(result)
        return result

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """Attention and feed-forward, each added to what came in."""
        x = x + self._normed(self.norm1, x, lambda y: self.attention(y, cosine, sine))
        whole = "moe" if isinstance(self.mlp, Experts) else "mlp"

        def feed_forward(y: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.mlp, y, use_reentrant=False) if whole in self.modules_again else self.mlp(y)

        return x + self._normed(self.norm2, x, feed_forward)


class Model(nn.Module):
    """Layers between an embedding and a head."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        self.full, self.offloaded = case["recompute"] == "full", case.get("offload_layers", 0)
        self.layers = nn.ModuleList(Layer(case) for _ in range(case["layers"]))
        self.embedding = nn.Embedding(case["vocab"], case["hidden"])
        self.norm = (nn.RMSNorm if case["style"] == "llama" else nn.LayerNorm)(case["hidden"])
        self.head = nn.Linear(case["hidden"], case["vocab"], bias=False)
        turned = case.get("rope_dim", case["head_dim"])
        angle = torch.outer(
            torch.arange(case["seq"], dtype=torch.float32), 1e4 ** -torch.arange(0, 1, 2 / turned, dtype=torch.float32)
        )
        angle = torch.cat((angle, angle), -1)
        self.register_buffer("cosine", angle.cos().to(torch.get_default_dtype()))
        self.register_buffer("sine", angle.sin().to(torch.get_default_dtype()))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Returns the loss."""
        x = self.embedding(x)
        for number, layer in enumerate(self.layers):
            if self.full:
                x = checkpoint(layer, x, self.cosine, self.sine, use_reentrant=False)
            elif number < self.offloaded:
                with torch.autograd.graph.saved_tensors_hooks(_to_host, _to_gpu):
                    x = layer(x, self.cosine, self.sine)
            else:
                x = layer(x, self.cosine, self.sine)
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), target.view(-1))


def _to_host(tensor: torch.Tensor) -> Any:
    """Packs a saved activation: a copy in pinned memory. Parameters and small tensors stay."""
    if isinstance(tensor, nn.Parameter) or tensor.is_leaf or tensor.numel() * tensor.element_size() < MIN_OFFLOADED:
        return tensor
    packed = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    packed.copy_(tensor, non_blocking=True)
    return tensor.device, packed


def _to_gpu(packed: Any) -> torch.Tensor:
    if isinstance(packed, torch.Tensor):
        return packed
    device, tensor = packed
    return tensor.to(device, non_blocking=True)


class Optimizer:
    """Fused AdamW over parameters, or over fp32 copies of them."""

    def __init__(self, model: nn.Module, case: dict[str, Any]) -> None:
        self.parameters = list(model.parameters())
        self.masters = None
        if case.get("master_dtype") == "fp32":
            self.masters = [parameter.detach().float() for parameter in self.parameters]
        self.adam = torch.optim.AdamW(self.masters or self.parameters, lr=1e-5, fused=True)

    def step(self) -> None:
        """Updates the parameters and drops gradients."""
        if self.masters is not None:
            for master, parameter in zip(self.masters, self.parameters, strict=True):
                master.grad, parameter.grad = parameter.grad.float(), None
        self.adam.step()
        if self.masters is not None:
            for master, parameter in zip(self.masters, self.parameters, strict=True):
                parameter.data.copy_(master)
        self.adam.zero_grad(set_to_none=True)


def used_bytes() -> int:
    """Returns what the driver counts as used on the GPU, by any process."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Runs some steps of a case and returns it with its memory in GiB."""
    before = used_bytes()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32 if case.get("param_dtype") == "fp32" else torch.bfloat16)
    with torch.device("cuda"):
        model = Model(case)
    optimizer = Optimizer(model, case)
    x, target = (torch.randint(0, case["vocab"], (case["mbs"], case["seq"]), device="cuda") for _ in range(2))
    begun = time.monotonic()
    for step in range(STEPS):
        if step == 1:  # states exist from the first update on
            torch.cuda.reset_peak_memory_stats()
        loss = model(x, target)
        loss.backward()
        del loss
        optimizer.step()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {
        **case,
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "step_s": round((time.monotonic() - begun) / STEPS, 3),
        "peak_gb": round(stats["allocated_bytes.all.peak"] / GIB, 3),
        "requested_gb": round(stats["requested_bytes.all.peak"] / GIB, 3),
        "reserved_gb": round(stats["reserved_bytes.all.peak"] / GIB, 3),
        "used_gb": round(used_bytes() / GIB, 3),
        "context_gb": round(before / GIB, 3),
        "outside_gb": round((used_bytes() - stats["reserved_bytes.all.current"]) / GIB, 3),
        "ok": True,
    }


def describe() -> dict[str, Any]:
    """Returns what a process takes before and after its first product and attention."""
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    facts: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "total_memory": torch.cuda.get_device_properties(0).total_memory,
        "nvidia_smi": _nvidia_smi(),
        "context_bytes": used_bytes() - torch.cuda.memory_reserved(),
    }
    for name, run in (
        ("product", lambda: torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16).mm(_square())),
        ("bias_product", lambda: functional.linear(_square(), _square(), _square()[0])),
        ("attention", lambda: attend(*(_square().view(1, 32, 4096, 128) for _ in range(3)))),
    ):
        allocated = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        facts[f"{name}_kept_bytes"] = torch.cuda.memory_allocated() - allocated
        facts[f"{name}_outside_bytes"] = used_bytes() - torch.cuda.memory_reserved()
    return facts


def _square() -> torch.Tensor:
    return torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)


def _nvidia_smi() -> str:
    query = [
        "nvidia-smi",
        "--query-gpu=memory.total,memory.reserved,memory.used,driver_version",
        "--format=csv,noheader",
    ]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def snapshot(path: str) -> None:
    """Writes the allocator's snapshot of a small case, and prints what its statistics say."""
    case = {**NO_CHANGES, "recompute_modules": [], **LLAMA, "layers": 2, "seq": 1024, "mbs": 1, "vocab": 8000}
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Model(case)
    optimizer = Optimizer(model, case)
    x, target = (torch.randint(0, case["vocab"], (1, 1024), device="cuda") for _ in range(2))
    torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=4000)
    for step in range(3):
        if step == 1:
            torch.cuda.reset_peak_memory_stats()
        model(x, target).backward()
        optimizer.step()
    torch.cuda.synchronize()
    torch.cuda.memory._dump_snapshot(path)
    stats = torch.cuda.memory_stats()
    names = ("allocated_bytes.all.peak", "reserved_bytes.all.peak", "allocated_bytes.all.current")
    print(json.dumps({"snapshot": Path(path).name, **{name: stats[name] for name in names}}))


def communicator() -> None:
    """Prints what NCCL takes of a GPU for communicators of this process alone, one after the other, in bytes."""
    import torch.distributed as dist

    torch.cuda.set_device(0)
    data = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    marks = {"before": used_bytes()}
    dist.init_process_group("nccl")
    marks["process group"] = used_bytes()
    groups = [dist.new_group([0]) for _ in range(6)]
    for number, group in enumerate(groups):
        dist.all_reduce(data, group=group)
        torch.cuda.synchronize()
        marks[f"communicator {number + 1}"] = used_bytes()
    reserved = torch.cuda.memory_reserved()
    names = list(marks)
    grown = {name: marks[name] - marks[before] for before, name in pairwise(names)}
    print(json.dumps({"nccl": list(torch.cuda.nccl.version()), "reserved": reserved, "grown": grown}), flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Runs every case in a process of its own until time is up, a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=420.0, help="begin no case after so long")
    parser.add_argument("--case", type=int, help="run one case by number, in this process; -1 describes the process")
    parser.add_argument("--snapshot", help="write the allocator's snapshot of a small case")
    parser.add_argument("--communicator", action="store_true", help="measure NCCL's own memory")
    options = parser.parse_args()
    if options.snapshot:
        snapshot(options.snapshot)
    elif options.communicator:
        communicator()
    elif options.case is not None:
        print(json.dumps(describe() if options.case < 0 else measure(full(CASES[options.case]))), flush=True)
    else:
        ends_at = time.monotonic() + options.seconds
        for number in range(-1, len(CASES)):
            if time.monotonic() >= ends_at:
                break
            command = [sys.executable, __file__, "--case", str(number)]
            done = subprocess.run(command, capture_output=True, text=True)
            error = done.stderr.strip().splitlines()[-1:] if done.returncode else []
            case = full(CASES[number]) if number >= 0 else {}
            print(done.stdout.strip() or json.dumps({**case, "ok": False, "error": error}), flush=True)


def full(case: dict[str, Any]) -> dict[str, Any]:
    """Returns a case with the fields that it leaves at their usual values."""
    return {**NO_CHANGES, "recompute_modules": [], **case}


if __name__ == "__main__":
    main()
