from __future__ import annotations
import argparse, contextlib, fcntl, gzip, itertools, json, os, shutil, subprocess, sys, time, traceback
from pathlib import Path
from statistics import median
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from steps import PLAIN, Model

def lm(hidden, ffn, heads, kv, dim, style, vocab, layers, seq, **more):
    return {"hidden": hidden, "ffn": ffn, "heads": heads, "kv": kv, "head_dim": dim, "style": style, "vocab": vocab, "layers": layers, "seq": seq, **PLAIN, **more}

def tokens(case, mbs):
    return [torch.randint(0, case["vocab"], (mbs, case["seq"]), device="cuda") for _ in range(2)]

def built(case):
    with torch.device("cuda"):
        return Model(case)

def adamw(model, **how):
    return torch.optim.AdamW(model.parameters(), lr=1e-5, **(how or {"fused": True}))

def plain(loss_of, opt, none=True):
    def step():
        loss_of().backward()
        opt.step()
        opt.zero_grad(set_to_none=none)
    return step

def gpt27b():
    c = lm(2560, 10240, 32, 32, 80, "gpt", 50304, 32, 1024)
    m = built(c); x, y = tokens(c, 1); o = adamw(m)
    return plain(lambda: m(x, y), o), o

def accum():
    c = lm(1024, 2816, 16, 8, 64, "llama", 32000, 10, 512)
    m = built(c); x, y = tokens(c, 2); o = adamw(m)
    def step():
        for _ in range(3):
            (m(x, y) / 3).backward()
        o.step(); o.zero_grad(set_to_none=True)
    return step, o

def accum_big():
    c = lm(3072, 8192, 24, 8, 128, "llama", 32000, 8, 2048)
    m = built(c); x, y = tokens(c, 2); o = adamw(m)
    def step():
        for _ in range(2):
            with record_function("forward"):
                l = m(x, y) / 2
            with record_function("backward"):
                l.backward()
        o.step(); o.zero_grad(set_to_none=True)
    return step, o

def recompute():
    c = lm(2048, 5632, 16, 8, 128, "llama", 32000, 12, 2048, recompute="full")
    m = built(c); x, y = tokens(c, 2); o = adamw(m)
    return plain(lambda: m(x, y), o), o

def compiled():
    c = lm(1024, 4096, 16, 16, 64, "gpt", 16384, 6, 512)
    m = built(c); x, y = tokens(c, 4); o = adamw(m)
    r = torch.compile(m)
    return plain(lambda: r(x, y), o), o

def foreach_false():
    c = lm(768, 2048, 12, 12, 64, "llama", 16384, 6, 256)
    m = built(c); x, y = tokens(c, 4); o = adamw(m, fused=False, foreach=False)
    return plain(lambda: m(x, y), o), o

class Experts(nn.Module):
    def __init__(self, hidden, inner, count):
        super().__init__()
        self.gate = nn.Linear(hidden, count, bias=False)
        self.up = nn.ModuleList(nn.Linear(hidden, inner) for _ in range(count))
        self.down = nn.ModuleList(nn.Linear(inner, hidden) for _ in range(count))
        self.norm = nn.LayerNorm(hidden)
        self.count = count
    def forward(self, x):
        y = self.norm(x)
        w, which = self.gate(y).float().softmax(-1).topk(2, -1)
        flat = which.flatten(); order = flat.argsort()
        sizes = torch.bincount(flat, minlength=self.count).tolist()
        rows = y[order // 2]
        done = torch.cat([d(F.gelu(u(r))) for u, d, r in zip(self.up, self.down, rows.split(sizes))])
        done = done * w.flatten()[order].unsqueeze(-1).to(done.dtype)
        return x + torch.zeros_like(x).index_add(0, order // 2, done)

def moe():
    with torch.device("cuda"):
        m = nn.Sequential(*[Experts(1024, 2048, 8) for _ in range(6)]); x = torch.randn(2048, 1024)
    o = adamw(m)
    return plain(lambda: m(x).float().square().mean(), o), None

class Mlp(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
    def forward(self, x):
        for l in self.layers:
            x = x + F.gelu(l(x))
        return x

def sided(width, rows, layers):
    with torch.device("cuda"):
        a, b = Mlp(width, layers), Mlp(width, layers); x = torch.randn(rows, width)
    o = torch.optim.AdamW([*a.parameters(), *b.parameters()], lr=1e-5, fused=True)
    side = torch.cuda.Stream()
    def loss():
        main = torch.cuda.current_stream()
        ready = torch.cuda.Event(); ready.record(main)
        with torch.cuda.stream(side):
            side.wait_event(ready)
            two = b(x)
            done = torch.cuda.Event(); done.record(side)
        one = a(x)
        main.wait_event(done)
        return (one + two).float().square().mean()
    return plain(loss, o), o

def prefetch():
    c = lm(768, 3072, 12, 12, 64, "gpt", 16384, 12, 512)
    m = built(c); o = adamw(m)
    host = [torch.randint(0, 16384, (16, 512)).pin_memory() for _ in range(2)]
    big = torch.randn(8 << 20).pin_memory()
    copies = torch.cuda.Stream()
    held = {}
    def fetch():
        with torch.cuda.stream(copies):
            held["next"] = [one.to("cuda", non_blocking=True) for one in (*host, big)]
    fetch()
    def step():
        torch.cuda.current_stream().wait_stream(copies)
        x, y, z = held["next"]
        for one in (x, y, z): one.record_stream(torch.cuda.current_stream())
        fetch()
        m(x, y).backward()
        o.step(); o.zero_grad(set_to_none=True)
    return step, None

def inference():
    c = lm(1536, 4096, 12, 12, 128, "llama", 32000, 16, 128)
    m = built(c).eval(); x, y = tokens(c, 1)
    @torch.no_grad()
    def step():
        m(x, y)
    return step, "forward"

def item_clip():
    c = lm(4096, 16384, 32, 32, 128, "gpt", 50304, 4, 1024)
    m = built(c); x, y = tokens(c, 2); o = adamw(m)
    seen = []
    def step():
        loss = m(x, y); loss.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        o.step(); o.zero_grad(set_to_none=True)
        seen.append(loss.item())
    return step, None

def sgd_zero():
    c = lm(2048, 5632, 32, 4, 64, "llama", 32000, 16, 256)
    m = built(c); x, y = tokens(c, 1)
    o = torch.optim.SGD(m.parameters(), lr=1e-5, momentum=0.9, foreach=True)
    return plain(lambda: m(x, y), o, none=False), o

def amp():
    torch.set_default_dtype(torch.float32)
    with torch.device("cuda"):
        m = nn.TransformerEncoder(nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True), 8, enable_nested_tensor=False)
        h = nn.Linear(768, 1000); x, t = torch.randn(8, 197, 768), torch.randint(0, 1000, (8,))
    p = [*m.parameters(), *h.parameters()]
    o = torch.optim.AdamW(p, lr=1e-5); s = torch.amp.GradScaler("cuda")
    def step():
        o.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(h(m(x).mean(1)), t)
        s.scale(loss).backward()
        s.unscale_(o); nn.utils.clip_grad_norm_(p, 1.0)
        s.step(o); s.update()
    return step, None

def lstm():
    torch.set_default_dtype(torch.float32)
    with torch.device("cuda"):
        m = nn.LSTM(512, 512, 2, batch_first=True); h = nn.Linear(512, 1000); x = torch.randn(32, 64, 512); t = torch.randint(0, 1000, (32 * 64,))
    o = torch.optim.Adam([*m.parameters(), *h.parameters()], lr=1e-4)
    return plain(lambda: F.cross_entropy(h(m(x)[0]).view(-1, 1000), t), o), None

class Block(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.a, self.b = nn.Conv2d(w, w, 3, padding=1, bias=False), nn.Conv2d(w, w, 3, padding=1, bias=False)
        self.n, self.m = nn.BatchNorm2d(w), nn.BatchNorm2d(w)
    def forward(self, x):
        return torch.relu(x + self.m(self.b(torch.relu(self.n(self.a(x))))))

def resnet():
    with torch.device("cuda"):
        m = nn.Sequential(nn.Conv2d(3, 128, 3, padding=1), *[Block(128) for _ in range(12)]).to(memory_format=torch.channels_last); h = nn.Linear(128, 1000)
    o = torch.optim.SGD([*m.parameters(), *h.parameters()], lr=1e-3, momentum=0.9)
    images, labels = torch.randn(128, 3, 56, 56), torch.randint(0, 1000, (128,))
    def loss():
        x, t = images.cuda().contiguous(memory_format=torch.channels_last), labels.cuda()
        return F.cross_entropy(h(m(x).mean((2, 3))).float(), t)
    return plain(loss, o), None

def tinyllama():
    c = lm(2048, 5632, 32, 4, 64, "llama", 32000, 22, 384)
    m = built(c); x, y = tokens(c, 1); o = adamw(m)
    return plain(lambda: m(x, y), o), o

W = {  # maker, [(tag, setting, style, active)]
 "gpt27b": (gpt27b, [("plain2", "plain", "steps", 2), ("none", "shapes", "none", 3)]),
 "accum": (accum, [("named", "shapes", "named", 3), ("none", "plain", "none", 3), ("steps", "shapes", "steps", 4)]),
 "accum_big": (accum_big, [("steps1", "shapes", "steps", 1), ("none", "shapes", "none", 3)]),
 "recompute": (recompute, [("none", "shapes", "none", 3), ("sync", "shapes", "syncd", 3)]),
 "foreach_false": (foreach_false, [("steps", "shapes", "steps", 3), ("plain", "plain", "steps", 3)]),
 "moe": (moe, [("steps", "shapes", "steps", 4), ("none", "plain", "none", 3)]),
 "sided_small": (lambda: sided(1024, 2048, 24), [("steps", "shapes", "steps", 4)]),
 "sided_big": (lambda: sided(4096, 8192, 8), [("steps", "shapes", "steps", 4), ("sync", "sync", "steps", 3)]),
 "prefetch": (prefetch, [("steps", "shapes", "steps", 4), ("plain", "plain", "none", 3)]),
 "inference": (inference, [("steps", "shapes", "steps", 4), ("none", "plain", "none", 4)]),
 "item_clip": (item_clip, [("steps", "shapes", "steps", 3), ("steps2", "plain", "steps", 2)]),
 "sgd_zero": (sgd_zero, [("steps1", "shapes", "steps", 1), ("sync", "shapes", "syncd", 3), ("stack", "stack", "steps", 2)]),
 "amp": (amp, [("stack", "stack", "steps", 2), ("shapes", "shapes", "steps", 4)]),
 "lstm": (lstm, [("steps", "shapes", "steps", 4), ("none", "shapes", "none", 4)]),
 "resnet": (resnet, [("steps", "shapes", "steps", 3)]),
 "tinyllama_s384": (tinyllama, [("named", "plain", "named", 2), ("shapes", "shapes", "steps", 4)]),
 "compiled": (compiled, [("steps", "shapes", "steps", 4), ("none", "plain", "none", 3)]),
}

def options(s):
    o = {"activities": [ProfilerActivity.CPU, ProfilerActivity.CUDA]}
    if s != "plain": o["record_shapes"] = True
    if s == "stack": o["with_stack"] = True
    if s == "sync": o["experimental_config"] = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    return o

def timed(step, n=25):
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
    torch.cuda.synchronize(); t = time.perf_counter()
    for m in marks[:-1]:
        m.record(); step()
    marks[-1].record(); torch.cuda.synchronize()
    mean = (time.perf_counter() - t) / n * 1e3
    each = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    return {"median": round(median(each), 4), "mean": round(mean, 4)}

def profiled(step, setting, style, active, path):
    clock = []
    def run(mark=None):
        step()
        if style == "syncd": torch.cuda.synchronize()
    if style in ("steps", "syncd"):
        with profile(schedule=schedule(wait=1, warmup=1, active=active, repeat=1), **options(setting)) as p:
            for i in range(2 + active):
                if i == 2:
                    torch.cuda.synchronize(); t = time.perf_counter()
                run()
                if i == 1 + active:
                    torch.cuda.synchronize(); took = time.perf_counter() - t
                p.step()
    else:
        for _ in range(2): step()
        torch.cuda.synchronize()
        with profile(**options(setting)) as p:
            t = time.perf_counter()
            for i in range(active):
                with (record_function(f"train_step-{i}") if style == "named" else contextlib.nullcontext()):
                    run()
            torch.cuda.synchronize(); took = time.perf_counter() - t
    p.export_chrome_trace(str(path))
    return {"mean": round(took / active * 1e3, 4)}

def captured(step, opt):
    if isinstance(opt, torch.optim.Optimizer):
        for g in opt.param_groups:
            if "capturable" in g: g["capturable"] = True
        for s in opt.state.values():
            if "step" in s and not s["step"].is_cuda: s["step"] = s["step"].cuda()
    side = torch.cuda.Stream(); side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3): step()
    torch.cuda.current_stream().wait_stream(side); torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g): step()
    g.replay(); torch.cuda.synchronize()
    return g

def one(name, out):
    with open(out / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        torch.manual_seed(0); torch.set_default_dtype(torch.bfloat16)
        maker, settings = W[name]
        step, opt = maker()
        for _ in range(5): step()
        torch.cuda.synchronize()
        found = {"unprofiled": [timed(step), timed(step)], "profiled": {}}
        paths = []
        for tag, setting, style, active in settings:
            path = out / f"{name}.{tag}.json"
            try:
                found["profiled"][tag] = profiled(step, setting, style, active, path) | {"setting": setting, "style": style, "active": active}
                paths.append(path)
            except Exception as e:
                found["profiled"][tag] = {"error": repr(e)[:300]}
        if opt is not None:
            try:
                g = captured(step, opt)
                found["graph"] = [timed(g.replay), timed(g.replay)]
            except Exception as e:
                found["graph_error"] = repr(e)[:300]
        (out / f"{name}.truth").write_text(json.dumps(found))
    for path in paths:
        with path.open("rb") as a, gzip.open(f"{path}.gz", "wb", compresslevel=6) as b: shutil.copyfileobj(a, b)
        path.unlink()

def main():
    out = Path(sys.argv[1]); seconds = float(sys.argv[2]); out.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) > 3:
        return one(sys.argv[3], out)
    began = time.monotonic(); running = []
    import threading
    for name in W:
        while len([r for r in running if r[1].poll() is None]) >= 2: time.sleep(0.2)
        if time.monotonic() - began > seconds: print("no time for", name, flush=True); continue
        running.append((name, subprocess.Popen([sys.executable, __file__, str(out), "0", name], stdout=open(out / f"{name}.log", "w"), stderr=subprocess.STDOUT)))
        print(f"{time.monotonic()-began:.0f} s: {name}", flush=True)
    for name, p in running:
        try: p.wait(max(1.0, seconds + 60 - (time.monotonic() - began)))
        except Exception: p.kill()
        t = out / f"{name}.truth"
        print(name, t.read_text() if t.exists() else (out / f"{name}.log").read_text()[-600:], flush=True)

main()
