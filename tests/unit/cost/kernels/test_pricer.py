"""Each kernel is priced by the best source that knows it, and says by which."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foretrace.basics.errors import InputError
from foretrace.cost.kernels.kernel_profile import KernelTimes, write_profile
from foretrace.cost.kernels.model import floor_s
from foretrace.cost.kernels.pricer import kernel_pricer
from foretrace.hardware import presets
from foretrace.program.kernels import Copy, Gemm, Kernel, Stream

H200 = presets.gpu("h200-sxm")
KERNELS: list[Kernel] = [Gemm(4096, 4096, 4096), Stream("add", 10**8, 10**8)]


def profile(folder: Path, factor: float) -> Path:
    """A profile in which everything takes `factor` times what the model says."""
    modelled = kernel_pricer(H200, "model").price(KERNELS).duration_s
    rows = [KernelTimes(kernel, s, factor * s) for kernel, s in zip(KERNELS, modelled.tolist(), strict=True)]
    write_profile(folder / "mine.profile", {"gpu": "NVIDIA H200"}, rows)
    return folder / "mine.profile"


def test_a_profile_comes_first(tmp_path: Path) -> None:
    modelled = kernel_pricer(H200, "model").price(KERNELS)
    pricer = kernel_pricer(H200, silicon=False, profile=profile(tmp_path, 1.25))
    priced = pricer.price(KERNELS)
    assert priced.duration_s == pytest.approx(1.25 * modelled.duration_s, rel=1e-3)
    assert {pricer.sources[one].name for one in priced.source.tolist()} == {"kernel profile mine"}
    assert (priced.low > modelled.low).all()
    assert (priced.high < modelled.high).all()


def test_beyond_the_profile_the_model_is_anchored_to_it(tmp_path: Path) -> None:
    pricer = kernel_pricer(H200, silicon=False, profile=profile(tmp_path, 1.25))
    far: list[Kernel] = [Gemm(65536, 65536, 4096)]
    priced, modelled = pricer.price(far), kernel_pricer(H200, "model").price(far)
    assert priced.duration_s == pytest.approx(1.25 * modelled.duration_s, rel=1e-3)
    assert pricer.sources[int(priced.source[0])].name == "kernel model, anchored to kernel profile mine"


def test_what_the_profile_lacks_the_model_prices(tmp_path: Path) -> None:
    pricer = kernel_pricer(H200, silicon=False, profile=profile(tmp_path, 1.25))
    other: list[Kernel] = [Stream("rmsnorm", 10**8, 10**8)]
    assert pricer.price(other).duration_s == kernel_pricer(H200, "model").price(other).duration_s
    assert pricer.sources[int(pricer.price(other).source[0])].name == "kernel model of h200-sxm"


def test_a_measurement_faster_than_the_datasheet_is_not_believed(tmp_path: Path) -> None:
    priced = kernel_pricer(H200, silicon=False, profile=profile(tmp_path, 0.3)).price(KERNELS)
    assert priced.duration_s.tolist() == floor_s(H200, KERNELS).tolist()


def test_the_roofline_alone() -> None:
    pricer = kernel_pricer(H200, "roofline")
    priced = pricer.price(KERNELS)
    assert priced.duration_s.tolist() == floor_s(H200, KERNELS).tolist()
    assert priced.low[0] < 1 < priced.high[0]


def test_the_same_kernel_has_the_same_price_again() -> None:
    pricer = kernel_pricer(H200)
    assert pricer.price(KERNELS).duration_s.tolist() == pricer.price(KERNELS[::-1]).duration_s.tolist()[::-1]
    assert pricer.price([]).duration_s.shape == (0,)


def test_a_gpu_like_another_says_so() -> None:
    mine = replace(H200, name="my-h200", power_w=500.0)
    pricer = kernel_pricer(mine, "model")
    assert [one.message for one in pricer.notes] == ["kernels of my-h200 are priced with the efficiencies of h200-sxm"]
    assert pricer.price(KERNELS).duration_s[0] > kernel_pricer(H200, "model").price(KERNELS).duration_s[0]


def test_an_unknown_architecture_is_a_warning_and_less_sure() -> None:
    pricer = kernel_pricer(replace(H200, name="x", architecture="Zilog"))
    assert [one.level for one in pricer.notes] == ["note", "warning"]
    assert pricer.price(KERNELS).low[0] < kernel_pricer(H200, "model").price(KERNELS).low[0]


def test_wrong_choices() -> None:
    with pytest.raises(InputError) as caught:
        kernel_pricer(H200, "silicone")  # type: ignore[arg-type]
    assert caught.value.code == "unknown-name"
    with pytest.raises(InputError, match=r"no-such\.profile"):
        kernel_pricer(H200, profile=Path("no-such.profile"))


def test_a_clock_worked_out_from_the_power_is_less_sure() -> None:
    product = [Gemm(8192, 8192, 8192)]
    alike, weaker = (kernel_pricer(presets.gpu(name), silicon=False) for name in ("h100-sxm", "h100-96g-500w"))
    sure, unsure = alike.price(product), weaker.price(product)
    assert unsure.duration_s[0] > sure.duration_s[0]
    assert unsure.high[0] > 1.05 * sure.high[0]
    assert unsure.low[0] < 0.95 * sure.low[0]


def test_copies_go_over_the_link_to_the_host() -> None:
    pcie, c2c = (
        kernel_pricer(presets.gpu(name), prices="model").price([Copy(1 << 30)]).duration_s[0]
        for name in ("b200", "gb200")
    )
    assert pcie / c2c == pytest.approx(225 / 64, rel=0.02), "NVLink-C2C against PCIe Gen5"
