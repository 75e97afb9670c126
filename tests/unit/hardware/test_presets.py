"""Presets: the figures of datasheets, and the names people type."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from foretrace.basics.errors import InputError
from foretrace.hardware import presets
from foretrace.hardware.cluster import Gpu, Nic, Node
from foretrace.hardware.presets import KINDS, OF_KIND, Kind, names
from foretrace.hardware.reader import DTYPES

GIB = 2**30
EVERYTHING = [(kind, name) for kind in KINDS for name in names(kind)]

# Name, memory in GiB as the driver reports it, memory GB/s, dense bf16 and fp8 TFLOP/s, links, GB/s of all links both
# ways, watts; see `sources`.
DATASHEETS = [
    ("a100-40g-sxm", 39.39, 1555, 312, None, 12, 600, 400),
    ("a100-80g-sxm", 79.15, 2039, 312, None, 12, 600, 400),
    ("a100-40g-pcie", 39.39, 1555, 312, None, 12, 600, 250),
    ("a100-80g-pcie", 79.15, 1935, 312, None, 12, 600, 300),
    ("a800-80g-sxm", 79.33, 2039, 312, None, 8, 400, 400),
    ("h100-sxm", 79.11, 3350, 989.4, 1978.9, 18, 900, 700),
    ("h100-96g-500w", 94.99, 2400, 989.4, 1978.9, 18, 900, 500),
    ("h100-pcie", 79.11, 2000, 756, 1513, 12, 600, 350),
    ("h100-nvl", 93, 3900, 835.5, 1670.5, 12, 600, 400),
    ("h800-sxm", 79.11, 3350, 989.4, 1978.9, 8, 400, 700),
    ("h20", 95, 4000, 148, 296, 18, 900, 400),
    ("h200-sxm", 139.8, 4800, 989.4, 1978.9, 18, 900, 700),
    ("b200", 178.35, 7700, 2250, 4500, 18, 1800, 1000),
    ("gb200", 184.31, 8000, 2500, 5000, 18, 1800, 1200),
    ("b300", 267.69, 7700, 2250, 4500, 18, 1800, 1100),
    ("gb300", 276.5, 8000, 2500, 5000, 18, 1800, 1400),
    ("mi300x", 191.98, 5300, 1307.4, 2614.9, 7, 896, 750),
]


def test_grace_takes_longer_for_a_launch_than_x86() -> None:
    """A linear layer of PyTorch in 37.1 us on GB200 and 13.5 us on a DGX H100."""
    factors = {name: presets.node(name).launch_factor for name in names("node")}
    grace = {name for name in factors if name.startswith("gb")}
    assert grace == {"gb200-nvl72", "gb300-nvl72"}
    assert [factors[name] for name in grace] == pytest.approx([37.1 / 13.5] * 2, rel=0.01)
    assert {factor for name, factor in factors.items() if name not in grace} == {1.0}


@pytest.mark.parametrize(("name", "memory", "memory_rate", "bf16", "fp8", "links", "both_ways", "watts"), DATASHEETS)
def test_figures_of_the_datasheets(
    name: str,
    memory: float,
    memory_rate: float,
    bf16: float,
    fp8: float | None,
    links: int,
    both_ways: float,
    watts: float,
) -> None:
    gpu = presets.gpu(name)
    assert gpu.memory_bytes == round(memory * GIB)
    assert gpu.memory_bytes_per_s == memory_rate * 1e9
    assert gpu.peak_flops["bf16"] == bf16 * 1e12
    assert gpu.peak_flops.get("fp8") == (fp8 and fp8 * 1e12)
    assert gpu.links == links
    assert 2 * gpu.link_bytes_per_s == both_ways * 1e9
    assert gpu.power_w == watts


def test_every_gpu_is_among_the_datasheets() -> None:
    assert {row[0] for row in DATASHEETS} == set(names("gpu"))


@pytest.mark.parametrize("name", names("gpu"))
def test_a_driver_keeps_a_little_of_the_memory_that_is_sold(name: str) -> None:
    gpu = presets.gpu(name)
    sold = re.search(r"(\d+) GB", gpu.title)
    assert sold is not None
    assert 0.98 < gpu.memory_bytes / (int(sold[1]) * GIB) < 1


def test_a_rack_is_what_its_page_says() -> None:
    """GB200 NVL72: 720 PFLOPS FP8 and 1,440 FP4, both with sparsity, and 130 TB/s of NVLink both ways."""
    gpu, node = presets.gpu("gb200"), presets.node("gb200-nvl72")
    assert node.domain_gpus == 72 == 18 * node.gpus
    assert 2 * 72 * gpu.peak_flops["fp8"] == 720e15
    assert 2 * 72 * gpu.peak_flops["fp4"] == 1440e15
    assert 2 * 72 * gpu.link_bytes_per_s == pytest.approx(130e12, rel=0.01)
    assert 72 * gpu.memory_bytes_per_s == 576e12
    assert 72 * presets.gpu("gb300").peak_flops["fp4"] == 1080e15
    assert 8 * presets.gpu("b300").peak_flops["fp4"] == 108e15


@pytest.mark.parametrize("name", names("gpu"))
def test_peaks_grow_as_numbers_shrink(name: str) -> None:
    peaks = presets.gpu(name).peak_flops
    assert set(peaks) <= set(DTYPES)
    for wide, narrow in [("fp32", "tf32"), ("tf32", "bf16"), ("bf16", "fp8"), ("fp8", "fp4")]:
        assert peaks.get(narrow, float("inf")) >= peaks[wide] if wide in peaks else True
    assert peaks["fp16"] == peaks["bf16"]
    assert peaks["bf16"] == pytest.approx(2 * peaks["tf32"], rel=0.01)
    if "fp8" in peaks:
        assert peaks["fp8"] == pytest.approx(2 * peaks["bf16"], rel=0.01)


@pytest.mark.parametrize("name", names("gpu"))
def test_links_have_the_rate_of_their_generation(name: str) -> None:
    gpu = presets.gpu(name)
    per_link = {"Ampere": 25e9, "Hopper": 25e9, "Blackwell": 50e9, "Blackwell Ultra": 50e9, "CDNA 3": 64e9}
    assert gpu.link_bytes_per_s / gpu.links == per_link[gpu.architecture]


@pytest.mark.parametrize(("kind", "name"), EVERYTHING)
def test_every_preset_says_where_its_figures_come_from(kind: Kind, name: str) -> None:
    item = OF_KIND[kind](name)
    assert item.name == name
    assert item.title != name
    if kind != "cluster":  # its figures are its node's
        assert item.sources
    assert all(re.search(r"https://\S+$", source) for source in item.sources)


@pytest.mark.parametrize("name", names("cluster"))
def test_presets_have_any_number_of_nodes_and_a_full_fat_tree(name: str) -> None:
    cluster = presets.cluster(name)
    assert (cluster.nodes, cluster.gpus, cluster.oversubscription, cluster.where) == (None, None, 1.0, None)
    cluster.check_fits(10**6)
    assert cluster.gpu is cluster.node.gpu


@pytest.mark.parametrize(
    ("name", "gpu", "gpus", "domain", "switched", "nics", "gbit"),
    [
        ("dgx-a100", "a100-80g-sxm", 8, 8, True, 8, 200),
        ("dgx-a100-40g", "a100-40g-sxm", 8, 8, True, 8, 200),
        ("hgx-h800", "h800-sxm", 8, 8, True, 8, 400),
        ("dgx-h100", "h100-sxm", 8, 8, True, 8, 400),
        ("dgx-b200", "b200", 8, 8, True, 8, 400),
        ("dgx-b300", "b300", 8, 8, True, 8, 800),
        ("gb200-nvl72", "gb200", 4, 72, True, 4, 400),
        ("gb300-nvl72", "gb300", 4, 72, True, 4, 800),
        ("h100-pcie", "h100-pcie", 8, 2, False, 4, 400),
        ("mi300x", "mi300x", 8, 8, False, 8, 400),
    ],
)
def test_nodes(name: str, gpu: str, gpus: int, domain: int, switched: bool, nics: int, gbit: float) -> None:
    node = presets.node(name)
    assert (node.gpu.name, node.gpus, node.domain_gpus, node.switched) == (gpu, gpus, domain, switched)
    assert (node.nics, node.nic.bytes_per_s * 8 / 1e9) == (nics, gbit)


def test_a_nic_is_no_faster_than_the_pcie_port_of_its_gpu() -> None:
    for name in names("node"):
        node = presets.node(name)
        assert node.nic.bytes_per_s <= node.gpu.pcie_bytes_per_s, name


@pytest.mark.parametrize(
    ("kind", "typed", "meant"),
    [
        ("gpu", "H100", "h100-sxm"),
        ("gpu", "H100-SXM", "h100-sxm"),
        ("gpu", "h100_sxm5", "h100-sxm"),
        ("gpu", "NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("gpu", "NVIDIA H100 PCIe", "h100-pcie"),
        ("gpu", "NVIDIA A100-SXM4-80GB", "a100-80g-sxm"),
        ("gpu", "A100-PCIE-40GB", "a100-40g-pcie"),
        ("gpu", "NVIDIA B300 SXM6 AC", "b300"),
        ("gpu", "AMD Instinct MI300X", "mi300x"),
        ("gpu", "GB200", "gb200"),
        ("nic", "ConnectX-7", "cx7"),
        ("nic", "NVIDIA BlueField-3", "bf3"),
        ("node", "DGX H100", "dgx-h100"),
        ("node", "h100-dgx", "dgx-h100"),
        ("cluster", "DGX-H100", "h100-dgx"),
        ("cluster", "dgxh100", "h100-dgx"),
        ("cluster", "h100", "h100-dgx"),
        ("cluster", "B200", "b200-dgx"),
        ("cluster", "nvl72_GB300", "gb300-nvl72"),
        ("cluster", "a100-40g", "a100-40g-dgx"),
    ],
)
def test_names_as_people_type_them(kind: Kind, typed: str, meant: str) -> None:
    assert OF_KIND[kind](typed).name == meant
    assert OF_KIND[kind](typed.upper()) is OF_KIND[kind](meant)


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_presets_share_a_spelling(kind: Kind) -> None:
    owner: dict[str, str] = {}
    for name in names(kind):
        for called in (name, *presets.aliases(kind, name)):
            assert OF_KIND[kind](called).name == name
            for key in presets.keys(called):
                assert owner.setdefault(key, name) == name


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_are_split_where_yaml_splits_them(kind: Kind) -> None:
    path = Path(presets.__file__).parent / "data" / f"{kind}s.yaml"
    whole = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert tuple(whole) == names(kind)
    for name, entry in whole.items():
        assert presets.aliases(kind, name) == tuple(entry.get("aliases", ()))


@pytest.mark.parametrize(
    ("kind", "typed", "problem", "hint"),
    [
        ("gpu", "a100", "may be any of 4 GPUs", "a100-40g-sxm a100-80g-sxm a100-40g-pcie a100-80g-pcie"),
        ("gpu", "h100-nvm", "did you mean h100-nvl?", "known: a100-40g-sxm"),
        ("gpu", "pcie", 'no GPU is called "pcie"', "known:"),
        ("nic", "", 'no NIC is called ""', "known: cx6 cx7 cx8 bf3"),
        ("cluster", "a100", "may be any of 3 clusters", "a100-dgx a100-40g-dgx a100-pcie"),
        ("cluster", "h10-dgx", "did you mean h100-dgx?", "or a path to a file"),
        ("cluster", "x" * 5_000, "no cluster is called", "known:"),
    ],
)
def test_names_that_mean_nothing_or_much(kind: Kind, typed: str, problem: str, hint: str) -> None:
    with pytest.raises(InputError) as refused:
        OF_KIND[kind](typed)
    assert refused.value.exit_code == 3
    assert problem in refused.value.message
    assert hint in (refused.value.hint or "")
    assert len(refused.value.message) < 200


def test_an_error_names_where_the_name_stands() -> None:
    for find in (presets.gpu, presets.nic, presets.node):
        with pytest.raises(InputError, match=r"^job\.yaml:3: no "):
            find("nothing", where="job.yaml:3")


def test_anything_prefers_a_name_to_a_spelling_and_a_cluster_to_its_parts() -> None:
    assert isinstance(presets.anything("dgx-h100"), Node)
    assert presets.anything("h100-dgx") is presets.cluster("h100-dgx")
    assert presets.anything("mi300x") is presets.cluster("mi300x")
    assert isinstance(presets.anything("h100-sxm"), Gpu)
    assert isinstance(presets.anything("ConnectX 8"), Nic)
    with pytest.raises(InputError) as refused:
        presets.anything("a100")
    assert refused.value.code == "ambiguous-name"
    assert "clusters a100-dgx" in str(refused.value)
    assert "gpus a100-40g-sxm" in str(refused.value)
    with pytest.raises(InputError) as caught:
        presets.anything("nothing")
    assert caught.value.code == "unknown-name"


def test_a_preset_is_read_once() -> None:
    for kind, name in EVERYTHING:
        assert OF_KIND[kind](name) is OF_KIND[kind](name)
