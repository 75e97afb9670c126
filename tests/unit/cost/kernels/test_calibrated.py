"""A calibration as the best source of kernel prices."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.basics.mesh import Mesh
from foretrace.cost.calibration import Calibration, MadeOf, StepFit
from foretrace.cost.kernels import kernel_pricer
from foretrace.cost.kernels.interface import KernelPricer
from foretrace.cost.kernels.kernel_profile import KernelProfile
from foretrace.cost.machine import Machine
from foretrace.cost.sources import PriceSources, calibrated_pricer, gpu_pricer
from foretrace.hardware import presets
from foretrace.hardware.cluster import Gpu
from foretrace.program.build import ProgramBuilder
from foretrace.program.kernels import Attention, Gemm, Kernel, Stream, kernel_text
from foretrace.program.program import Program

GPU = presets.gpu("h200-sxm")
MODEL = kernel_pricer(GPU, prices="model")
CLUSTER = presets.cluster("h200-dgx")


def calibration(times: dict[Kernel, float], gpu: str = "h200-sxm") -> Calibration:
    seconds, unknown = np.array(list(times.values())), np.zeros(len(times))
    return Calibration("my.yaml", gpu, kernels=KernelProfile({}, tuple(times), seconds, seconds, unknown, unknown))


def off_by(factor: float, *kernels: Kernel) -> Calibration:
    """One that measured so many times what the model says."""
    return calibration(dict(zip(kernels, (factor * MODEL.price(kernels).duration_s).tolist(), strict=True)))


GRID = tuple(Gemm(m, n, 4096) for m in (2048, 4096, 8192) for n in (2048, 4096, 8192))


def products() -> Program:
    """A job of one GPU that runs each product of the grid."""
    build = ProgramBuilder(Mesh())
    role = build.role("all", [0])
    for one in GRID:
        role.compute("product", math.nan, kernel=kernel_text(one))
    return build.program()


class TestPrices:
    def test_a_measured_kernel_takes_what_it_took(self) -> None:
        fit = off_by(1.3, *GRID)
        found = calibrated_pricer(GPU, fit, "model").price(GRID)
        assert fit.kernels is not None
        assert found.duration_s.tolist() == fit.kernels.sustained_s.tolist()
        assert (found.source == 0).all()

    def test_between_measured_shapes_the_ratio_holds(self) -> None:
        kernel = Gemm(6144, 3072, 4096)
        found = calibrated_pricer(GPU, off_by(1.3, *GRID), "model").price([kernel])
        assert found.duration_s[0] == pytest.approx(1.3 * MODEL.price([kernel]).duration_s[0], rel=0.02)
        assert found.source[0] == 0

    def test_far_away_the_family_s_part_of_it_holds(self) -> None:
        pricer, kernel = calibrated_pricer(GPU, off_by(1.3, *GRID), "model"), Gemm(65536, 65536, 32768)
        found = pricer.price([kernel])
        ratio = found.duration_s[0] / MODEL.price([kernel]).duration_s[0]
        assert 1.2 < ratio < 1.3, "nine shapes that agree say nearly all of it"
        assert pricer.sources[found.source[0]].name == "kernel model of h200-sxm, corrected by my.yaml"

    def test_one_shape_says_less_of_others_than_many(self) -> None:
        kernel = Gemm(65536, 65536, 32768)
        one, many = (calibrated_pricer(GPU, off_by(1.3, *GRID[:n]), "model") for n in (1, 9))
        assert one.price([kernel]).duration_s[0] < many.price([kernel]).duration_s[0]

    def test_a_slice_says_little_of_other_slices(self) -> None:
        measured, other = Stream("cat_strided", 2**24, 2**24), Stream("cat_strided", 2**30, 2**30)
        pricer = calibrated_pricer(GPU, off_by(1.8, measured), "model")
        ratio = pricer.price([other]).duration_s[0] / MODEL.price([other]).duration_s[0]
        assert 1.0 < ratio < 1.3

    def test_families_that_were_not_measured_stay_as_they_are(self) -> None:
        kernel = Attention(1, 32, 32, 4096, 4096, 128, 128, 4096 * 2048)
        pricer = calibrated_pricer(GPU, off_by(1.3, *GRID), "model")
        found, usual = pricer.price([kernel]), MODEL.price([kernel])
        assert found.duration_s[0] == usual.duration_s[0]
        assert (found.low[0], found.high[0]) == (usual.low[0], usual.high[0])
        assert pricer.sources[found.source[0]].name == "kernel model of h200-sxm"

    def test_no_seam_jumps(self) -> None:
        pricer = calibrated_pricer(GPU, off_by(1.3, *GRID), "model")
        sizes = [Gemm(m, 4096, 4096) for m in range(8192, 200_000, 256)]
        ratio = pricer.price(sizes).duration_s / MODEL.price(sizes).duration_s
        assert np.abs(np.diff(ratio)).max() < 0.02

    def test_what_is_known_of_a_stream_is_its_bytes_and_rows(self) -> None:
        measured = Stream("embedding", 2**20, 2**20, rows=512)
        pricer = calibrated_pricer(GPU, calibration({measured: 7e-6}), "model")
        assert pricer.price([Stream("embedding", 2**20, 2**20)]).duration_s[0] == 7e-6


class TestSources:
    def test_it_comes_before_the_best_of_the_others(self) -> None:
        fit = off_by(1.5, *GRID)
        pricer = calibrated_pricer(GPU, fit, "best", silicon=False)
        assert pricer.price(GRID).duration_s == pytest.approx(1.5 * MODEL.price(GRID).duration_s)
        assert pricer.sources[0].name == "calibration my.yaml (9 kernels)"

    def test_one_pricer_serves_all_jobs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = []

        def counted(gpu: Gpu, sources: PriceSources, fit: Calibration | None) -> KernelPricer:
            made.append(gpu.name)
            return gpu_pricer(gpu, sources, fit)

        monkeypatch.setattr("foretrace.cost.sources.gpu_pricer", counted)
        machine = Machine(CLUSTER, prices="model", calibration=off_by(1.5, *GRID))
        for one in (machine, machine, machine.with_(network="flow")):
            one.price(products())
        assert made == ["h200-sxm"]

    def test_another_gpu_is_an_error(self) -> None:
        machine = Machine("h100-dgx", calibration=off_by(1.5, *GRID))
        with pytest.raises(InputError, match="of h200-sxm, the job runs on h100-sxm"):
            machine.price(products())

    def test_a_factor_of_whole_steps_is_on_all_and_said(self) -> None:
        fit = replace(off_by(1.0, *GRID), steps=StepFit(1.1, 4, 0.01, 0.1))
        pricer = calibrated_pricer(GPU, fit, "model")
        kernels = [*GRID, Stream("add", 2**26, 2**26)]
        assert pricer.price(kernels).duration_s == pytest.approx(1.1 * MODEL.price(kernels).duration_s)
        assert any("1.100 times as long, as 4 whole steps call for" in note.message for note in pricer.notes)

    def test_how_far_kernels_are_from_what_was_measured(self) -> None:
        pricer = calibrated_pricer(GPU, off_by(1.3, *GRID), "model")
        found = pricer.covers([GRID[0], Gemm(16384, 8192, 4096), Stream("add", 1, 1)])
        assert found.tolist() == [0.0, pytest.approx(1.0, abs=1e-3), np.inf]


class TestClocks:
    def seconds(self, fit: Calibration) -> list[float]:
        priced = Machine(CLUSTER, prices="model", calibration=fit).price(products())
        return priced.prices.duration_s[0].tolist()

    def test_products_recorded_amid_a_step_take_the_clock_of_the_job(self) -> None:
        fit = replace(off_by(1.0, *GRID), made_of=(MadeOf("step.json.gz", "trace", kernels=len(GRID), slower=1.03),))
        assert all(at > usual for at, usual in zip(self.seconds(fit), MODEL.price(GRID).duration_s, strict=True))

    def test_what_holds_no_recorded_products_changes_no_clock(self) -> None:
        usual = MODEL.price(GRID).duration_s
        calls = Calibration("my.yaml", "h200-sxm", made_of=(MadeOf("all_reduce.log", "collectives", collectives=3),))
        profile = replace(off_by(1.0, *GRID), made_of=(MadeOf("h200.profile", "kernel profile", kernels=len(GRID)),))
        for fit in (calls, profile):
            assert self.seconds(fit) == pytest.approx(usual.tolist())
