"""A calibration of files of all kinds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretrace
from foretrace.basics.errors import InputError
from foretrace.calibrate.calibrate import calibration_of_files
from foretrace.calibrate.fit import family_fits, family_name
from foretrace.calibrate.inputs import input_kind
from foretrace.cost.kernels.corrections import family
from foretrace.cost.kernels.kernel_profile import KernelTimes, write_profile
from foretrace.hardware import presets
from foretrace.program.columns import Collective
from foretrace.program.kernels import Attention, Gemm, GroupedGemm, Stream
from kineto_files import document, span, write
from recorded_steps import H200, steps, trace_file
from shared_files import shared

COLLECTIVES = "collective,gpus,nodes,bytes,time_us\nall_reduce,8,1,1048576,40\nall_reduce,8,1,2097152,60\n"
TABLE = """\
--------------  ------------  ------------  ------------  ------------  ------------------------------
          Name      Self CPU      CPU total     Self CUDA    # of Calls                    Input Shapes
--------------  ------------  ------------  ------------  ------------  ------------------------------
      aten::mm     100.000us     100.000us       4.000ms            10    [[8192, 2048], [2048, 11264]]
--------------  ------------  ------------  ------------  ------------  ------------------------------
Self CPU time total: 100.000us
Self CUDA time total: 4.000ms
"""


def profile_file(folder: Path, gpu: str = "h200-sxm", name: str = "own.profile") -> Path:
    path = folder / name
    write_profile(path, {"gpu": gpu, "preset": gpu}, [KernelTimes(Gemm(8192, 4096, 1024), 1e-4, 1.2e-4)])
    return path


class TestKinds:
    def test_files_are_told_by_what_is_in_them(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text(COLLECTIVES)
        (tmp_path / "steps.csv").write_text("id,model,gpu,gpus,mbs,step_time_s\n1,llama3-8b,h200,8,1,2.0\n")
        (tmp_path / "steps.jsonl").write_text('{"name": "a", "step_ms": 3.0}\n')
        (tmp_path / "table.txt").write_text(TABLE)
        kinds = {
            "a.csv": "collectives",
            "steps.csv": "steps",
            "steps.jsonl": "steps",
            "table.txt": "table",
            profile_file(tmp_path).name: "kernel profile",
            profile_file(tmp_path, name="packed.profile.gz").name: "kernel profile",
            trace_file(tmp_path).name: "trace",
            trace_file(tmp_path, "packed.json.gz").name: "trace",
        }
        assert {name: input_kind(tmp_path / name) for name in kinds} == kinds

    @pytest.mark.parametrize(("text", "message"), [("", "empty"), ("hello\n", "nothing here can be calibrated with")])
    def test_others_are_refused(self, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / "x.txt").write_text(text)
        with pytest.raises(InputError, match=message):
            input_kind(tmp_path / "x.txt")

    @pytest.mark.parametrize("path", ["/dev/zero", "pipe", "x" * 300, "a\0b"])
    def test_devices_pipes_and_names_of_no_file(self, tmp_path: Path, path: str) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InputError) as caught:
            input_kind(tmp_path / path)
        assert caught.value.code in ("wrong-format", "unreadable-file")

    @pytest.mark.parametrize("paths", [8, [8], b"x", [[1]], None, np.zeros(3)])
    def test_paths_that_are_none(self, tmp_path: Path, paths: Any) -> None:
        with pytest.raises(InputError, match="bad-value"):
            foretrace.make_calibration(paths, tmp_path / "my.yaml", gpu="h200-sxm")
        with pytest.raises(InputError, match="bad-value"):
            foretrace.make_calibration(["a"], paths, gpu="h200-sxm")
        with pytest.raises(InputError, match="bad-value"):
            foretrace.make_calibration([profile_file(tmp_path)], tmp_path / "my.yaml", cluster=[paths])  # type: ignore[arg-type]


class TestMaking:
    def test_of_a_trace(self, tmp_path: Path) -> None:
        made = calibration_of_files([trace_file(tmp_path)], tmp_path / "my.yaml").calibration
        assert (made.gpu, made.device) == ("h200-sxm", "NVIDIA H200")
        assert made.kernels is not None and set(made.kernels.kernels) == {
            Gemm(4096, 4096, 1024),
            Gemm(8192, 4096, 1024),
        }
        (source,) = made.made_of
        assert (source.kind, source.kernels, source.products) == ("trace", 2, 4)
        assert source.slower >= 1.0

    def test_of_a_kernel_profile_and_collectives(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text(COLLECTIVES)
        made = calibration_of_files([profile_file(tmp_path), tmp_path / "a.csv"], tmp_path / "my.yaml").calibration
        assert made.kernels is not None and made.kernels.sustained_s.tolist() == [1.2e-4]
        assert made.collectives is not None and len(made.collectives.rows) == 2
        assert [one.kind for one in made.made_of] == ["kernel profile", "collectives"]

    def test_a_profile_s_header_says_what_launches_take(self, tmp_path: Path) -> None:
        facts = {"preset": "h200-sxm", "host_forward_us": "20", "host_forward_launches": "100"}
        facts |= {"host_backward_us": "30", "host_backward_launches": "300"}
        write_profile(tmp_path / "own.profile", facts, [KernelTimes(Gemm(8192, 4096, 1024), 1e-4, 1.2e-4)])
        made = calibration_of_files([tmp_path / "own.profile"], tmp_path / "my.yaml").calibration
        assert made.host is not None
        assert (made.host.launch_s, made.host.launches) == (pytest.approx(27.5e-6), 400)

    def test_of_a_table(self, tmp_path: Path) -> None:
        (tmp_path / "table.txt").write_text(TABLE)
        made = calibration_of_files([tmp_path / "table.txt"], tmp_path / "my.yaml", gpu="h200")
        assert made.calibration.kernels is not None
        assert made.calibration.kernels.kernels == (Gemm(8192, 11264, 2048),)
        assert any(note.code == "assumed" for note in made.notes)

    def test_files_that_measure_the_same_give_the_median(self, tmp_path: Path) -> None:
        kernel = Gemm(8192, 4096, 1024)
        for number, seconds in enumerate((1e-4, 2e-4, 9e-4)):
            write_profile(
                tmp_path / f"{number}.profile", {"preset": "h200-sxm"}, [KernelTimes(kernel, seconds, seconds)]
            )
        made = calibration_of_files([tmp_path / f"{n}.profile" for n in range(3)], tmp_path / "my.yaml").calibration
        assert made.kernels is not None and made.kernels.sustained_s.tolist() == [2e-4]

    def test_a_table_does_not_say_its_gpu(self, tmp_path: Path) -> None:
        (tmp_path / "table.txt").write_text(TABLE)
        with pytest.raises(InputError) as caught:
            calibration_of_files([tmp_path / "table.txt"], tmp_path / "my.yaml")
        assert caught.value.code == "missing-argument"

    def test_two_gpus_are_refused_by_name(self, tmp_path: Path) -> None:
        files = [profile_file(tmp_path), profile_file(tmp_path, "a100-80g-sxm", "b.profile")]
        with pytest.raises(InputError, match="measurements of h200-sxm and of a100-80g-sxm") as caught:
            calibration_of_files(files, tmp_path / "my.yaml")
        assert caught.value.code == "other-gpu"
        with pytest.raises(InputError, match="measurements of h200-sxm and of b200") as caught:
            calibration_of_files([trace_file(tmp_path)], tmp_path / "my.yaml", gpu="b200")
        assert caught.value.code == "other-gpu"

    def test_collectives_of_another_gpu_are_refused(self, tmp_path: Path) -> None:
        log = tmp_path / "a.csv"
        lines = [f"{line},A100-SXM4-40GB" for line in COLLECTIVES.splitlines()[1:]]
        log.write_text("\n".join(["collective,gpus,nodes,bytes,time_us,hardware", *lines]))
        with pytest.raises(InputError) as caught:
            calibration_of_files([profile_file(tmp_path), log], tmp_path / "my.yaml")
        assert caught.value.code == "other-gpu"
        assert calibration_of_files([log], tmp_path / "my.yaml").calibration.gpu == "a100-40g-sxm"
        made = calibration_of_files([log], tmp_path / "my.yaml", gpu="a100-80g-sxm")
        assert (made.calibration.gpu, [note.code for note in made.notes]) == ("a100-80g-sxm", ["other-gpu"])

    def test_collectives_that_do_not_state_their_gpu(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text(COLLECTIVES)
        made = calibration_of_files([profile_file(tmp_path), tmp_path / "a.csv"], tmp_path / "my.yaml")
        assert "gpu-not-stated" in {note.code for note in made.notes}

    def test_a_profile_whose_header_names_two_gpus(self, tmp_path: Path) -> None:
        path = tmp_path / "a.profile"
        write_profile(path, {"gpu": "NVIDIA A100-SXM4-40GB", "preset": "h200-sxm"}, [KernelTimes(Gemm(8, 8, 8), 1, 1)])
        with pytest.raises(InputError) as caught:
            calibration_of_files([path], tmp_path / "my.yaml")
        assert caught.value.code == "other-gpu"

    def test_kernels_that_the_gpu_cannot_run_so_fast_are_left_out(self, tmp_path: Path) -> None:
        slow, fast, usual = Gemm(8192, 4096, 1024), Gemm(8192, 8192, 8192), Gemm(4096, 4096, 4096)
        times = [KernelTimes(slow, 1e-2, 1e-2), KernelTimes(fast, 1e-5, 1e-5), KernelTimes(usual, 2e-4, 2e-4)]
        write_profile(tmp_path / "a.profile", {"preset": "h200-sxm"}, times)
        made = calibration_of_files([tmp_path / "a.profile"], tmp_path / "my.yaml")
        assert made.calibration.kernels is not None and made.calibration.kernels.kernels == (slow, usual)
        assert [(note.level, note.code) for note in made.notes] == [("warning", "beats-peak"), ("warning", "off-model")]

    @pytest.mark.parametrize(
        ("name", "value"),
        [("us", "1e308"), ("us", "3e4"), ("us", "0.03"), ("us", "nan"), ("us", "-1"), ("launches", "9" * 400)],
    )
    def test_launches_of_a_header_that_cannot_be_meant(self, tmp_path: Path, name: str, value: str) -> None:
        facts = {"preset": "h200-sxm", "host_forward_us": "20", "host_forward_launches": "100"}
        facts |= {"host_backward_us": "30", "host_backward_launches": "300", f"host_backward_{name}": value}
        write_profile(tmp_path / "own.profile", facts, [KernelTimes(Gemm(8192, 4096, 1024), 1e-4, 1.2e-4)])
        with pytest.raises(InputError) as caught:
            calibration_of_files([tmp_path / "own.profile"], tmp_path / "my.yaml")
        assert caught.value.code == "out-of-range"

    def test_a_gpu_that_nobody_knows(self, tmp_path: Path) -> None:
        path = write(tmp_path, document(steps(), deviceProperties=[{"id": 0, "name": "Quadro 6000"}]))
        with pytest.raises(InputError, match="quadro-6000") as caught:
            calibration_of_files([path], tmp_path / "my.yaml")
        assert caught.value.code == "unknown-name"


class TestCollectivesOfTraces:
    def trace(self, folder: Path, times: list[float]) -> Path:
        arguments = {"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 16}
        arguments |= {"dtype": "BFloat16", "Process Group Name": "0", "Process Group Ranks": str(list(range(16)))}
        events = steps()
        for number, one in enumerate(times):
            call = span("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 9000 + 100 * number, one, pid=0, tid=20)
            call["args"] |= {"device": 0, "stream": 20, "correlation": 900 + number, **arguments}
            launch = span("cuda_runtime", "cudaLaunchKernel", 8900 + 10 * number, 4, correlation=900 + number)
            events += [launch, call]
        info = {"rank": 0, "world_size": 16}
        return write(folder, document(events, deviceProperties=H200, distributedInfo=info))

    def test_the_shortest_of_a_size_counts(self, tmp_path: Path) -> None:
        path = self.trace(tmp_path, [90.0, 30.0, 60.0])
        made = calibration_of_files([path], tmp_path / "my.yaml", cluster=presets.cluster("h200-dgx")).calibration
        assert made.collectives is not None
        (row,) = made.collectives.rows
        assert (row.collective, row.gpus, row.nodes, row.size_bytes) == (Collective.ALL_REDUCE, 16, 2, 2048)
        assert row.time_s == pytest.approx(30e-6)

    def test_two_calls_are_too_few(self, tmp_path: Path) -> None:
        made = calibration_of_files([self.trace(tmp_path, [90.0, 30.0])], tmp_path / "my.yaml")
        assert made.calibration.collectives is None


class TestFits:
    def test_a_family_s_fit(self) -> None:
        kernels = [Gemm(2**n, 4096, 1024) for n in range(8, 14)]
        modelled = np.array([one.flops for one in kernels]) / 7e14
        (fit,) = family_fits(kernels, 1.25 * modelled, modelled)
        assert (fit.name, fit.kernels) == ("gemm bf16 tn", 6)
        assert (fit.factor, fit.low, fit.high) == (pytest.approx(1.25), pytest.approx(1.25), pytest.approx(1.25))
        assert fit.error == pytest.approx(0.0, abs=1e-6)

    def test_one_kernel_alone_says_how_far_the_model_is_off(self) -> None:
        kernels = [Stream("add", 2**20, 2**20)]
        (fit,) = family_fits(kernels, np.array([2e-5]), np.array([1e-5]))
        assert fit.error == pytest.approx(np.log(2))

    def test_names(self) -> None:
        attention = Attention(1, 8, 8, 128, 128, 64, 64, 128 * 64, backward=True)
        names = [family_name(family(one)) for one in (attention, GroupedGemm(4, 8, 8, 8), Stream("add", 1, 1))]
        assert names == ["attention bf16 cudnn backward", "grouped_gemm bf16 tn", "stream add"]


def test_a_real_trace() -> None:
    trace = shared("data", "h200", "tinyllama_mbs4.json.gz")
    made = calibration_of_files([trace], "my.yaml").calibration
    assert made.kernels is not None and len(made.kernels.kernels) > 40
    products = [fit for fit in made.families if fit.name.startswith("gemm")]
    assert all(0.85 < fit.factor < 1.1 for fit in products)
    assert made.made_of[0].products == 311
