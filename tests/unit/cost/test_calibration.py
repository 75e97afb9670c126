"""Calibrations as files: read as they were written, and refused with a reason."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.cost.calibration import (
    Calibration,
    FamilyFit,
    HostFit,
    MadeOf,
    StepFit,
    read_calibration,
    write_calibration,
)
from foretrace.cost.kernels.kernel_profile import KernelProfile, KernelTimes, write_profile
from foretrace.cost.network.nccl_tests.aggregation import measurements_of
from foretrace.cost.network.nccl_tests.records import Measurement
from foretrace.program.columns import Collective
from foretrace.program.kernels import Gemm, Stream

KERNELS = (Gemm(8192, 4096, 1024), Stream("add", 2**20, 2**19))


def made(path: Path) -> Calibration:
    times = np.array([1e-4, 2e-5])
    call = Measurement(Collective.ALL_REDUCE, 8, 1, 1 << 20, 4e-5, "log", 1)
    return Calibration(
        str(path),
        "h200-sxm",
        "NVIDIA H200",
        {"torch": "2.11.0"},
        (MadeOf("step.json", "trace", kernels=2, step_s=0.125, busy=0.5, slower=1.25, products=3, flops=123456789.0),),
        KernelProfile({"gpu": "NVIDIA H200"}, KERNELS, times, 2 * times, 0 * times, 0 * times),
        measurements_of([call]),
        (FamilyFit("gemm bf16 tn", 1, 0.9, 0.85, 1.1, 0.05),),
        HostFit(3.1e-5, 1300),
        StepFit(1.02, 4, 0.01, 0.03),
    )


class TestRoundTrip:
    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        before = made(tmp_path / "my.yaml")
        write_calibration(before)
        assert [file.name for file in tmp_path.iterdir()] == ["my.yaml"]
        after = read_calibration(tmp_path / "my.yaml")
        for name in ("gpu", "device", "software", "made_of", "families", "host", "steps"):
            assert getattr(after, name) == getattr(before, name), name
        assert after.kernels is not None and after.kernels.kernels == KERNELS
        assert after.kernels.sustained_s.tolist() == [2e-4, 4e-5]
        assert after.collectives is not None
        row = after.collectives.rows[0]
        assert (row.collective, row.gpus, row.nodes, row.size_bytes) == (Collective.ALL_REDUCE, 8, 1, 1 << 20)
        assert row.time_s == pytest.approx(4e-5)

    def test_answers_call_it_by_its_name(self, tmp_path: Path) -> None:
        write_calibration(made(tmp_path / "my.yaml"))
        found = read_calibration(tmp_path / "my.yaml")
        assert found.source == "calibration my.yaml (2 kernels)"
        assert found.collectives is not None and found.collectives.source == "calibration my.yaml (1 calls)"

    def test_it_is_read_once_while_it_stays_as_it_is(self, tmp_path: Path) -> None:
        write_calibration(made(tmp_path / "my.yaml"))
        first = read_calibration(tmp_path / "my.yaml")
        assert read_calibration(tmp_path / "my.yaml") is first
        write_calibration(replace(made(tmp_path / "my.yaml"), device="another one"))
        assert read_calibration(tmp_path / "my.yaml").device == "another one"

    def test_names_of_gpus_that_a_file_may_hold(self, tmp_path: Path) -> None:
        odd = "A \x07 GPU,\n'\"#: |\x85\u2028 名前 \U0001f600"
        calibration = made(tmp_path / "my.yaml")
        assert calibration.kernels is not None and calibration.collectives is not None
        row = replace(calibration.collectives.rows[0], gpu=odd)
        profile = replace(calibration.kernels, facts={"gpu": odd})
        write_calibration(replace(calibration, kernels=profile, collectives=measurements_of([row]), device=odd))
        after = read_calibration(tmp_path / "my.yaml")
        assert after.collectives is not None and after.collectives.rows[0].gpu.startswith("A")
        assert after.kernels is not None and after.kernels.kernels == KERNELS

    def test_parts_may_be_absent(self, tmp_path: Path) -> None:
        write_calibration(Calibration(str(tmp_path / "a.yaml"), "h200-sxm", host=HostFit(3e-5, 100)))
        found = read_calibration(tmp_path / "a.yaml")
        assert found.kernels is None and found.collectives is None and found.host == HostFit(3e-5, 100)


class TestBinding:
    """A calibration and its tables are of one run."""

    def test_a_table_of_another_run_is_refused(self, tmp_path: Path) -> None:
        text = write_calibration(made(tmp_path / "my.yaml")).read_text()
        for old, new in (("\t0.0002\t", "\t0.0001\t"), ("1048576,40", "1048576,41")):
            assert old in text
            (tmp_path / "other.yaml").write_text(text.replace(old, new))
            with pytest.raises(InputError) as caught:
                read_calibration(tmp_path / "other.yaml")
            assert caught.value.code == "damaged-file" and "other.yaml" in str(caught.value.where)

    def test_files_of_an_earlier_version_are_read_and_said_to_be_unbound(self, tmp_path: Path) -> None:
        write_profile(tmp_path / "my.profile", {"gpu": "NVIDIA H200"}, [KernelTimes(KERNELS[0], 1e-4, 1e-4)])
        (tmp_path / "my.csv").write_text("collective,gpus,nodes,bytes,time_us\nall_reduce,8,1,1048576,40\n")
        text = "calibration: 1\ngpu: h200-sxm\nkernels: my.profile\ncollectives: my.csv\n"
        (tmp_path / "my.yaml").write_text(text)
        found = read_calibration(tmp_path / "my.yaml")
        assert found.kernels is not None and found.collectives is not None
        assert [note.code for note in found.notes] == ["unbound-tables"]
        (tmp_path / "my.yaml").write_text(f"{text}sha256: {{kernels: {'0' * 64}}}\n")
        with pytest.raises(InputError) as caught:
            read_calibration(tmp_path / "my.yaml")
        assert caught.value.code == "damaged-file"
        assert "my.profile" in str(caught.value) and "my.yaml" in str(caught.value)

    def test_what_cannot_be_written_leaves_the_old_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before = write_calibration(made(tmp_path / "my.yaml")).read_bytes()

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "replace", fail)
        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises((InputError, OSError)):
            write_calibration(replace(made(tmp_path / "my.yaml"), device="another one"))
        assert (tmp_path / "my.yaml").read_bytes() == before
        assert [file.name for file in tmp_path.iterdir()] == ["my.yaml"]


class TestErrors:
    def refused(self, folder: Path, text: str) -> str:
        (folder / "bad.yaml").write_text(text)
        with pytest.raises(InputError) as raised:
            read_calibration(folder / "bad.yaml")
        return str(raised.value)

    def test_an_empty_file(self, tmp_path: Path) -> None:
        assert "the calibration is empty" in self.refused(tmp_path, "\n")

    def test_a_yaml_that_is_none(self, tmp_path: Path) -> None:
        assert "[wrong-format]" in self.refused(tmp_path, "model: llama3-8b\nplan: {gpus: 8}\n")

    def test_another_version(self, tmp_path: Path) -> None:
        text = self.refused(tmp_path, "calibration: 7\ngpu: h200-sxm\n")
        assert 'bad.yaml:1: version "7" is not known' in text and "calibrate" in text

    def test_a_missing_table(self, tmp_path: Path) -> None:
        text = self.refused(tmp_path, "calibration: 1\ngpu: h200-sxm\nkernels: gone.profile\n")
        assert "bad.yaml:3: the table gone.profile is missing" in text

    def test_nothing_in_it(self, tmp_path: Path) -> None:
        assert "holds nothing" in self.refused(tmp_path, "calibration: 1\ngpu: h200-sxm\n")

    def test_no_gpu(self, tmp_path: Path) -> None:
        assert "field gpu is missing" in self.refused(tmp_path, "calibration: 1\n")

    @pytest.mark.parametrize("launch", ["fast", "-1e-5", "0", "3e-8", "0.03", "nan", ".nan", ".inf", "1e300"])
    def test_a_number_that_is_none(self, tmp_path: Path, launch: str) -> None:
        text = self.refused(tmp_path, f"calibration: 1\ngpu: h200-sxm\nhost: {{launch_s: {launch}, launches: 3}}\n")
        assert f"bad.yaml:3: launch_s is {launch}" in text

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="cannot read the calibration"):
            read_calibration(tmp_path / "none.yaml")

    def test_another_gpu(self, tmp_path: Path) -> None:
        write_calibration(made(tmp_path / "my.yaml"))
        with pytest.raises(InputError, match="of h200-sxm, the job runs on a100-80g-sxm") as caught:
            read_calibration(tmp_path / "my.yaml").check_gpu("a100-80g-sxm")
        assert caught.value.code == "other-gpu"
