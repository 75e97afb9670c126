"""Changed figures of a cluster, and the prices that follow from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrace.basics.errors import InputError
from foretrace.cost.kernels.parameters import base_of
from foretrace.hardware.changes import FIGURES, changed_cluster, check_change, with_gpu
from foretrace.hardware.presets import cluster, gpu

H100 = cluster("h100-dgx")


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_multiplied_alone(name: str) -> None:
    changed = changed_cluster(H100, {name: 2.0})
    for other, figure in FIGURES.items():
        expected = figure.read(H100) * (2.0 if other == name else 1.0)
        assert figure.read(changed) == pytest.approx(expected)
    assert changed.name != H100.name


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("nic", "800Gbps", 100e9),
        ("nvlink", "900GB/s", 900e9),
        ("hbm", "8TB/s", 8e12),
        ("power", "500W", 500.0),
        ("power", "1.2kW", 1200.0),
        ("memory", "192GiB", 192 * 2**30),
        ("flops", "2000TFLOPS", 2e15),
        ("pcie", "2x", 2 * H100.gpu.pcie_bytes_per_s),
    ],
)
def test_an_amount_or_a_factor(name: str, text: str, value: float) -> None:
    assert FIGURES[name].read(changed_cluster(H100, {name: text})) == pytest.approx(value)


def test_a_changed_gpu_remembers_its_preset() -> None:
    twice = changed_cluster(changed_cluster(H100, {"hbm": 2.0}), {"flops": 2.0}).gpu
    assert (twice.name, twice.base) == ("h100-sxm-changed", "h100-sxm")
    assert changed_cluster(H100, {"nic": 2.0}).gpu == H100.gpu


def test_parts_are_replaced_before_figures() -> None:
    other = changed_cluster(H100, {"power": "1200W", "gpu": "b200", "cluster": "a100-dgx-80g"})
    assert (other.gpu.base, other.gpu.power_w, other.node.nics) == ("b200", 1200.0, cluster("a100-dgx-80g").node.nics)


def test_a_gpu_without_links_has_no_domain() -> None:
    alone = with_gpu(H100, replace(gpu("h100-sxm"), links=0, link_bytes_per_s=0.0))
    assert (alone.node.domain_gpus, alone.node.switched) == (1, False)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"nic": "2"}, "bad-value"),
        ({"power": "500"}, "bad-value"),
        ({"hbm": "fast"}, "bad-value"),
        ({"flops": "-1x"}, "out-of-range"),
        ({"flops": 1e9}, "out-of-range"),
        ({"power": "0W"}, "out-of-range"),
        ({"gpu": "h1000"}, "unknown-name"),
        ({"cluster": "nothing"}, "unknown-name"),
    ],
)
def test_bad_changes_are_refused(changes: dict[str, float | str], code: str) -> None:
    with pytest.raises(InputError) as error:
        changed_cluster(H100, changes)
    assert error.value.code == code


def test_texts_are_checked_without_a_cluster() -> None:
    check_change("nic", "800Gbps")
    with pytest.raises(InputError):
        check_change("nic", "800GiB")


@pytest.mark.parametrize("text", ["1e-300x", "0x", "1e300x", "800GiB"])
def test_errors_name_the_change(text: str) -> None:
    with pytest.raises(InputError) as refused:
        check_change("nic", text)
    assert f"nic={text}" in refused.value.message


def test_a_figure_that_is_not_stated_cannot_be_changed() -> None:
    silent = with_gpu(H100, replace(gpu("h100-sxm"), power_w=0.0))
    with pytest.raises(InputError) as error:
        changed_cluster(silent, {"power": "500W"})
    assert error.value.code == "missing-field"


def test_a_gpu_without_a_preset_can_be_changed_and_priced() -> None:
    own = replace(gpu("h100-sxm"), name="mine", architecture="unknown", base="")
    node = replace(H100.node, gpu=own)
    for name in ("hbm", "flops", "memory"):
        changed = changed_cluster(replace(H100, node=node), {name: 1.5}).gpu
        assert changed.base == ""
        assert base_of(changed) is None
