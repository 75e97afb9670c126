"""Ops that only stream memory go at its rate; others without a duration stay an error."""

from __future__ import annotations

import pytest

from foretrace import Mesh, ProgramBuilder
from foretrace.basics.errors import InputError
from foretrace.cost.network import network_of
from foretrace.cost.pricing import STREAM_BAND, STREAM_SHARE, price
from foretrace.hardware import presets
from foretrace.program.expand import Ops, expand

H100 = presets.cluster("h100-dgx")


def ops(**basis: float) -> Ops:
    build = ProgramBuilder(Mesh(tp=2))
    role = build.role("all", range(2))
    role.compute("gemm", 1e-3, moved_bytes=1e9)
    role.compute("update", **basis)
    role.collective("all_reduce", build.communicator("tp"), bytes=1 << 20, lane="compute")
    return expand(build.program())


def test_bytes_at_the_rate_of_the_memory() -> None:
    prices = price(ops(moved_bytes=8e9), network_of(H100, 2), H100.gpu)
    written, streamed, network = prices.duration_s[0].tolist()
    assert written == 1e-3
    assert streamed == pytest.approx(8e9 / (H100.gpu.memory_bytes_per_s * STREAM_SHARE))
    assert 0 < network < 1e-3
    assert [prices.sources[one].name for one in prices.source.tolist()[1:]] == [
        f"memory bandwidth of {H100.gpu.name}",
        "network model of h100-dgx",
    ]
    assert prices.latency_s[0, 1] == 0.0


def test_streams_need_no_network() -> None:
    build = ProgramBuilder(Mesh())
    build.role("all", [0]).compute("update", moved_bytes=1e9)
    prices = price(expand(build.program()), None, H100.gpu)
    assert prices.duration_s[0, 0] == pytest.approx(1e9 / (H100.gpu.memory_bytes_per_s * STREAM_SHARE))
    assert (prices.sources[-1].low, prices.sources[-1].high) == STREAM_BAND


@pytest.mark.parametrize("basis", [{}, {"flops": 1e12}, {"flops": 1e12, "moved_bytes": 1e9}])
def test_what_does_not_only_stream_stays_an_error(basis: dict[str, float]) -> None:
    with pytest.raises(InputError, match='"update" of role "all" has no duration'):
        price(ops(**basis), network_of(H100, 2), H100.gpu)


def test_without_a_gpu_bytes_have_no_price() -> None:
    with pytest.raises(InputError) as caught:
        price(ops(moved_bytes=1e9), network_of(H100, 2))
    assert caught.value.code == "unpriced-op"
