"""What scripts do besides training: they run under the tracer as on a GPU, or are refused by name."""

from __future__ import annotations

import math
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from foretrace.basics.errors import InputError  # noqa: E402
from foretrace.inputs.script.recording import KernelLaunch, RankRecording  # noqa: E402
from foretrace.inputs.script.tracer import unknown  # noqa: E402
from foretrace.inputs.script.tracer.places import TraceComplete  # noqa: E402
from foretrace.inputs.script.tracer.session import TraceSession  # noqa: E402
from foretrace.inputs.script.tracer.unknown import CannotTrace, UnknownNumber  # noqa: E402
from foretrace.inputs.script.tracing import TraceRequest, trace_script  # noqa: E402
from foretrace.program.columns import Phase  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def session() -> Iterator[TraceSession]:
    with TraceSession(0, 8) as session:
        yield session


def _on_gpu(*sizes: int) -> Any:
    return torch.randn(*sizes, device="cuda")


def _step(model: Any, loss: Any) -> None:
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def _ops(session: TraceSession) -> list[str]:
    log = session.log
    return [log.signatures[event.signature].op for event in log.events if isinstance(event, KernelLaunch)]


def _phases(session: TraceSession) -> set[Phase]:
    return {event.place.phase for event in session.log.events if isinstance(event, KernelLaunch)}


def _recurrent() -> None:
    model = nn.LSTM(16, 32, 2, batch_first=True).cuda()
    _step(model, model(_on_gpu(4, 10, 16))[0].sum())


def _multihead() -> None:
    model = nn.MultiheadAttention(32, 4, batch_first=True).cuda()
    x = _on_gpu(2, 8, 32)
    mask = nn.Transformer.generate_square_subsequent_mask(8, device="cuda")
    _step(model, model(x, x, x, attn_mask=mask, need_weights=False)[0].sum())


def _encoder() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).cuda()
    padded = torch.zeros(2, 8, dtype=torch.bool, device="cuda")
    _step(model, model(_on_gpu(2, 8, 32), src_key_padding_mask=padded).sum())


def _convolutions() -> None:
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    layers += [nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.Upsample(scale_factor=2, mode="bilinear"), nn.GroupNorm(2, 8)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)).cuda()
    model = model.to(memory_format=torch.channels_last)
    images = torch.randn(4, 3, 32, 32).cuda().to(memory_format=torch.channels_last)
    _step(model, F.cross_entropy(model(images), torch.randint(10, (4,), device="cuda"), label_smoothing=0.1))


def _embedding_bag() -> None:
    model = nn.EmbeddingBag(100, 16, mode="sum").cuda()
    words = torch.randint(100, (40,), device="cuda")
    _step(model, model(words, torch.arange(0, 40, 4, device="cuda")).sum())


def _masks() -> None:
    model = nn.Linear(12, 8).cuda()
    x = model(F.unfold(_on_gpu(2, 3, 8, 8), 2, stride=2).transpose(1, 2))
    x = torch.where(x > 0, x, 0.0).masked_fill(x > 1, 0.0)
    causal = torch.tril(torch.ones(16, 8, device="cuda", dtype=torch.bool))
    x = x.masked_fill(~causal, -1e9)
    assert x[0][causal].shape == (int(causal.sum()),)
    x[x > 0] = 0.0
    _step(model, torch.einsum("bij,bkj->bik", x, x).softmax(-1).sum())


def _complex() -> None:
    angles = torch.outer(torch.arange(8, device="cuda").float(), torch.arange(4, device="cuda").float())
    turns = torch.polar(torch.ones_like(angles), angles)
    model = nn.Linear(8, 8).cuda()
    x = torch.view_as_complex(model(_on_gpu(2, 8, 2, 8)).float().reshape(2, 8, 2, 4, 2))
    _step(model, torch.view_as_real(x * turns[None, :, None]).flatten(3).sum())


def _own_gradients() -> None:
    x = _on_gpu(4).requires_grad_()
    (slope,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    slope.sum().backward()
    model = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)).cuda()
    _step(model, model(_on_gpu(2, 8)).sum())


@pytest.mark.parametrize(
    "train",
    [
        _recurrent,
        _multihead,
        _encoder,
        _convolutions,
        _embedding_bag,
        _masks,
        _complex,
        _own_gradients,
    ],
)
def test_layers_have_a_forward_and_a_backward(session: TraceSession, train: Callable[[], None]) -> None:
    train()
    assert {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER} <= _phases(session)


def test_random_numbers_and_initialisers(session: TraceSession) -> None:
    weight = torch.empty(16, 16, device="cuda")
    init = nn.init
    for fill in (init.normal_, init.xavier_uniform_, init.kaiming_normal_, init.trunc_normal_, init.orthogonal_):
        fill(weight)
    weight.uniform_().exponential_().bernoulli_(0.5)
    generator = torch.Generator(device="cuda").manual_seed(1)
    torch.randn(4, device="cuda", generator=generator)
    torch.multinomial(torch.ones(8, device="cuda"), 4, generator=generator)
    torch.cuda.manual_seed_all(3)
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())
    assert "aten::uniform_" in _ops(session)


@pytest.mark.usefixtures("session")
def test_devices_as_scripts_name_them() -> None:
    for made in (torch.empty(2, device=0), torch.empty(2).to(0), torch.zeros(2).cuda(0), nn.Linear(2, 2).to(0).weight):
        assert made.is_cuda and made.device.index == 0
    assert torch.device(1) == torch.device("cuda", 1)
    torch.set_default_device("cuda")
    try:
        assert torch.tensor([1.0]).is_cuda and nn.Linear(4, 4).weight.is_cuda
    finally:
        torch.set_default_device(None)
    pinned = torch.empty(16, 16, pin_memory=True)
    assert pinned.is_pinned() and pinned.cuda(non_blocking=True).is_cuda
    small = nn.Parameter(torch.zeros(2))
    before = id(small)
    small.data = small.data.cuda()
    assert small.is_cuda and id(small) == before
    assert torch.empty(4, device="cuda").data_ptr() != torch.empty(4, device="cuda").data_ptr()


@pytest.mark.usefixtures("session")
def test_cuda_answers() -> None:
    torch.cuda.memory_summary()
    assert torch.cuda.get_device_properties(0).total_memory > 0
    assert torch.cuda.device_count() == 8
    assert torch.cuda.nccl.version() > (2, 0)
    with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
        assert torch.cuda.memory_allocated() >= 0
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    end.record()
    assert f"{begin.elapsed_time(end):.2f}" == "?"


@pytest.mark.usefixtures("session")
def test_numbers_of_the_host_are_real_and_those_of_the_gpu_unknown() -> None:
    assert torch.tensor([1, 2], device="cuda").tolist() == [1, 2]
    host = torch.randn(4)
    assert host.sum().item() == host.sum().item() == pytest.approx(float(host.numpy().sum()))
    loss = _on_gpu(4).sum()
    assert not torch.isnan(loss) and torch.isfinite(loss).all() and not math.isnan(loss.item())
    for text in (str(loss), f"{loss:.3f}", f"{loss.item():.3f}", repr(nn.Linear(2, 2).cuda().weight)):
        assert "nan" not in text
    with pytest.raises(CannotTrace) as raised:
        assert loss.item() > 3
    assert raised.value.code == "needs-value"
    assert raised.value.where is not None and Path(__file__).name in raised.value.where


def test_a_plain_number_of_an_unknown_one_is_reported(session: TraceSession) -> None:
    assert float(_on_gpu(1)) > 0
    assert "assumed" in [note.code for note in session.recording().diagnostics]


def test_checkpoints_are_kept_in_memory(session: TraceSession, tmp_path: Path) -> None:
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(_on_gpu(2, 4)).sum().backward()
    optimizer.step()
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}, path)
    stored = torch.load(path, map_location="cpu")
    assert stored["step"] == 3 and not stored["model"]["weight"].is_cuda
    model.load_state_dict(stored["model"])
    optimizer.load_state_dict(stored["optimizer"])
    assert not path.exists()
    assert "not-written" in [note.code for note in session.notes]


def _dense(kind: str) -> None:
    table = nn.Embedding(100, 16, sparse=True).cuda()
    table(torch.randint(100, (4,), device="cuda")).sum().backward()
    del kind


@pytest.mark.parametrize(
    ("run", "code"),
    [
        (lambda: _dense("sparse"), "unsupported-op"),
        (lambda: _on_gpu(8)[_on_gpu(8) > 0], "needs-value"),
        (lambda: nn.DataParallel(nn.Linear(2, 2)), "unsupported-op"),
        (lambda: torch.cuda.CUDAGraph(), "unsupported-op"),
        (lambda: torch.nested.nested_tensor([torch.randn(2), torch.randn(3)], device="cuda"), "unsupported-op"),
        (lambda: F.ctc_loss(_on_gpu(9, 1, 5), *(torch.ones(1, dtype=torch.long).cuda(),) * 3), "unsupported-op"),
        (lambda: _on_gpu(4).numpy(), "needs-value"),
    ],
)
@pytest.mark.usefixtures("session")
def test_what_cannot_be_traced_is_refused(run: Callable[[], object], code: str) -> None:
    with pytest.raises(CannotTrace) as raised:
        run()
    assert raised.value.code == code


@pytest.mark.usefixtures("session")
def test_batches_come_from_workers() -> None:
    data = TensorDataset(torch.randn(32, 8), torch.randint(3, (32,)))
    shapes = []
    for rows, _ in DataLoader(data, 8, shuffle=True, pin_memory=True, num_workers=2):
        moved = rows.cuda(non_blocking=True)
        shapes.append((tuple(moved.shape), moved.is_cuda))
    assert shapes == [((8, 8), True)] * 4


def test_threads_of_the_script_are_traced(session: TraceSession) -> None:
    made = []

    def prefetch() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            made.append(torch.randn(8, 8).cuda(non_blocking=True) * 2)

    thread = threading.Thread(target=prefetch)
    thread.start()
    thread.join()
    assert made[0].is_cuda and "aten::mul" in _ops(session)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    with ThreadPoolExecutor(2) as pool:
        assert all(moved.is_cuda for moved in pool.map(lambda size: torch.zeros(size).cuda(), range(1, 5)))


def _doubled(number: int) -> float:
    return float((torch.ones(1) * number * 2).item())


@pytest.mark.usefixtures("session")
def test_forked_children_make_real_tensors() -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_doubled, range(3)) == [0.0, 2.0, 4.0]


@pytest.mark.usefixtures("session")
def test_a_process_for_each_gpu_is_this_rank() -> None:
    ranks = []
    torch.multiprocessing.spawn(lambda rank, name: ranks.append((rank, name)), args=("train",), nprocs=8)
    assert ranks == [(0, "train")]


def _recorded(iterate: Callable[[], None], steps: int = 1) -> RankRecording:
    with TraceSession(0, 1) as session:
        try:
            for _ in range(20):
                iterate()
        except TraceComplete:
            pass
    recording = session.recording()
    assert len(recording.steps) == steps
    return recording


def _optimizer_ops(recording: RankRecording) -> int:
    begin, end = recording.steps[-1]
    events = recording.events[begin:end]
    return sum(isinstance(event, KernelLaunch) and event.place.phase is Phase.OPTIMIZER for event in events)


def test_a_step_has_every_optimizer() -> None:
    parts: dict[str, Any] = {}

    def iterate() -> None:
        if not parts:
            for name, outputs in (("generator", 8), ("critic", 1)):
                parts[name] = nn.Linear(8, outputs).cuda()
                parts[f"{name} optimizer"] = torch.optim.SGD(parts[name].parameters(), lr=0.1, foreach=True)
        for _ in range(3):
            parts["critic"](parts["generator"](_on_gpu(4, 8)).detach()).mean().backward()
            parts["critic optimizer"].step()
        parts["critic"](parts["generator"](_on_gpu(4, 8))).mean().backward()
        parts["generator optimizer"].step()

    assert _optimizer_ops(_recorded(iterate)) == 4


@pytest.mark.parametrize("iterations", [4, 40])
def test_an_optimizer_that_never_steps_does_not_join_steps(iterations: int) -> None:
    with TraceSession(0, 1) as session:
        model = nn.Linear(8, 8).cuda()
        kept = [torch.optim.SGD(model.parameters(), lr=0.1, foreach=True) for _ in range(2)]
        try:
            for _ in range(iterations):
                model(_on_gpu(4, 8)).sum().backward()
                kept[0].step()
        except TraceComplete:
            pass
    recording = session.recording()
    assert (recording.first_step, len(recording.steps)) == (1, 1)
    assert _optimizer_ops(recording) == 1


CATCHES_EVERYTHING = """
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    try:
        loss = model(torch.randn(4, 8, device="cuda")).sum()
        loss.backward()
        {decides}
        optimizer.step()
    except:
        continue
"""


def test_scripts_that_catch_everything_are_ended(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(CATCHES_EVERYTHING.format(decides=""), encoding="utf-8")
    assert len(trace_script(TraceRequest(str(path))).recordings[0].steps) == 1
    path.write_text(CATCHES_EVERYTHING.format(decides="assert loss.item() < 10"), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        trace_script(TraceRequest(str(path)))
    assert caught.value.code == "needs-value"


@pytest.mark.usefixtures("session")
def test_a_loop_that_an_assumed_number_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnknownNumber, "assumed", 2.0)
    monkeypatch.setattr(unknown, "MAX_DECISIONS", 5)
    with pytest.raises(CannotTrace):
        while _on_gpu(4).norm() > 1:
            pass


@pytest.mark.usefixtures("session")
def test_functions_of_unknown_numbers_are_unknown() -> None:
    with pytest.raises(CannotTrace):
        assert math.exp(_on_gpu(4).sum().item()) > 1


def test_the_backward_of_a_graph_that_is_kept_is_no_recomputation(session: TraceSession) -> None:
    model = nn.Linear(8, 8).cuda()
    grads = torch.autograd.grad(model(_on_gpu(4, 8)).sum(), list(model.parameters()), create_graph=True)
    assert len(grads) == 2
    assert _phases(session) == {Phase.FORWARD, Phase.BACKWARD}


@pytest.mark.usefixtures("session")
def test_anomaly_mode_finds_no_nan() -> None:
    model = nn.Linear(8, 8).cuda()
    with torch.autograd.detect_anomaly():
        model(_on_gpu(4, 8)).sum().backward()


@pytest.mark.usefixtures("session")
def test_a_model_moves_while_a_graph_holds_its_weights() -> None:
    model = nn.utils.weight_norm(nn.Linear(8, 8)).cuda()
    _step(model, model(_on_gpu(4, 8)).sum())
    assert model.weight_g.is_cuda
    assert model.weight_g.grad.is_cuda


def test_optimizers_step_in_the_backward_or_not_at_all() -> None:
    parts: dict[str, Any] = {}

    def with_hooks() -> None:
        if not parts:
            parts["model"] = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).cuda()
            for parameter in parts["model"].parameters():
                own = torch.optim.SGD([parameter], lr=0.1)
                parameter.register_post_accumulate_grad_hook(lambda _, own=own: own.step())
        parts["model"](_on_gpu(2, 8)).sum().backward()

    assert _optimizer_ops(_recorded(with_hooks)) == 4

    parts.clear()

    def without() -> None:
        model = parts.setdefault("model", nn.Linear(8, 8).cuda())
        model.zero_grad()
        model(_on_gpu(2, 8)).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad

    recording = _recorded(without)
    begin, end = recording.steps[-1]
    assert any(
        isinstance(event, KernelLaunch) and recording.signatures[event.signature].op == "aten::sub_"
        for event in recording.events[begin:end]
    )


def test_a_script_of_a_package_imports_from_it_and_may_end_itself(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "options.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    (package / "train.py").write_text("from . import options\n")
    with pytest.raises(InputError) as raised:
        trace_script(TraceRequest(str(package / "train.py"), ("--no-such-option",)))
    assert raised.value.code == "script-failed" and "--no-such-option" in str(raised.value)
