"""Cluster files: what a user may write, what is filled in, and what is refused with its line."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.basics.errors import InputError
from foretrace.hardware import presets
from foretrace.hardware.cluster import Cluster
from shared_files import ROOT

GIB = 2**30
TEN_LINES = """name: my-cluster
node:
  gpu: h100-sxm            # a preset's name
  gpus: 8
  nic: 400Gbps             # or a rate
  nics: 8
nodes: 128
oversubscription: 2
"""
OWN_GPU = """node:
  gpu: {memory: 64GiB, memory_bandwidth: 2TB/s, bf16: 500TFLOPS}
  gpus: 4
  nic: cx6
"""


def read(folder: Path, text: str, name: str = "cluster.yaml") -> Cluster:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return presets.cluster(str(path))


def test_ten_lines(tmp_path: Path) -> None:
    cluster = read(tmp_path, TEN_LINES)
    assert (cluster.name, cluster.nodes, cluster.gpus, cluster.oversubscription) == ("my-cluster", 128, 1024, 2.0)
    assert cluster.node.gpu is presets.gpu("h100-sxm")
    assert (cluster.node.nic.bytes_per_s, cluster.node.nics) == (50e9, 8)
    assert (cluster.node.domain_gpus, cluster.node.switched) == (8, True)
    assert cluster.where == f"{tmp_path / 'cluster.yaml'}:1"
    with pytest.raises(InputError) as caught:
        cluster.check_fits(1025)
    assert caught.value.code == "cluster-too-small"


def test_json_says_the_same(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "name": "my-cluster",
            "node": {"gpu": "h100-sxm", "gpus": 8, "nic": "400Gbps", "nics": 8},
            "nodes": 128,
            "oversubscription": 2,
        },
        indent="\t",
    )
    from_json, from_yaml = read(tmp_path, text, "cluster.json"), read(tmp_path, TEN_LINES)
    assert from_json.node == from_yaml.node
    assert (from_json.name, from_json.nodes, from_json.oversubscription) == ("my-cluster", 128, 2.0)


def test_only_what_differs(tmp_path: Path) -> None:
    base = presets.cluster("h100-dgx")
    cluster = read(tmp_path, "based_on: DGX-H100\nnodes: 4\n", "four.yaml")
    assert cluster.name == "four"
    assert cluster.node is base.node
    changed = read(tmp_path, "based_on: h100-dgx\nnode:\n  gpu:\n    memory: 96GiB\n  nics: 4\n")
    assert changed.gpu.memory_bytes == 96 * GIB
    assert changed.gpu.memory_bytes_per_s == base.gpu.memory_bytes_per_s
    assert changed.gpu.name == "h100-sxm-changed"  # no measured table is this GPU's any more
    assert (changed.node.nics, changed.node.nic, changed.node.gpus) == (4, base.node.nic, 8)
    assert changed.nodes is None


def test_another_network_does_not_keep_what_was_said_of_the_first(tmp_path: Path) -> None:
    base = presets.cluster("h100-dgx")
    assert "SuperPOD" in base.notes[0]
    other = read(tmp_path, "based_on: h100-dgx\ntopology: hpn\nnotes: as Alibaba builds it\n")
    assert (other.notes, other.sources) == (("as Alibaba builds it",), ())
    same = read(tmp_path, "based_on: h100-dgx\ntopology: {failed: [spine 0]}\n")
    assert (same.notes, same.sources) == (base.notes, base.sources)


def test_what_follows_the_number_of_gpus(tmp_path: Path) -> None:
    four = read(tmp_path, "based_on: h100-dgx\nnode: {gpus: 4}\n").node
    assert (four.gpus, four.domain_gpus, four.nics, four.switched) == (4, 4, 4, True)
    tray = read(tmp_path, "based_on: gb200-nvl72\nnode: {nics: 2}\n").node
    assert (tray.gpus, tray.domain_gpus, tray.nics) == (4, 72, 2)
    other = read(tmp_path, "based_on: h100-dgx\nnode: {gpu: h200}\n").node
    assert other.gpu is presets.gpu("h200-sxm")


def test_defaults_of_a_gpu_of_ones_own(tmp_path: Path) -> None:
    node = read(tmp_path, OWN_GPU).node
    assert (node.gpu.links, node.gpu.link_bytes_per_s, node.domain_gpus, node.switched) == (0, 0.0, 1, False)
    assert (node.gpu.pcie_bytes_per_s, node.gpu.peak_flops, node.nics) == (64e9, {"bf16": 500e12}, 4)
    linked = OWN_GPU.replace("TFLOPS}", "TFLOPS, links: 6, link_bandwidth: 300GB/s}")
    assert read(tmp_path, linked).node.domain_gpus == 4
    assert read(tmp_path, linked).node.switched
    assert not read(tmp_path, linked.replace("gpus: 4", "gpus: 2")).node.switched
    assert not read(tmp_path, "node: {gpu: mi300x, gpus: 8, nic: 400Gbps}\n").node.switched


def test_links_of_a_base_keep_their_rate(tmp_path: Path) -> None:
    gpu = read(tmp_path, "based_on: h100-dgx\nnode: {gpu: {links: 8}}\n").gpu
    assert (gpu.links, gpu.link_bytes_per_s) == (8, 200e9)


@pytest.mark.parametrize(("text", "factor"), [("2x", 2.0), ("2.75", 2.75), ("50%", 0.5), ("10x", 10.0)])
def test_how_long_the_host_takes_for_a_launch(text: str, factor: float, tmp_path: Path) -> None:
    assert read(tmp_path, f"based_on: h100-dgx\nnode: {{launch_factor: {text}}}\n").node.launch_factor == factor


def test_the_host_is_that_of_the_base(tmp_path: Path) -> None:
    assert read(tmp_path, "based_on: gb200-nvl72\nnode: {nics: 2}\n").node.launch_factor == 2.75
    assert read(tmp_path, OWN_GPU).node.launch_factor == 1.0


def test_a_factor_of_its_own_serves_pytorch_too_unless_it_has_one(tmp_path: Path) -> None:
    def factors(text: str) -> tuple[float, float | None]:
        node = read(tmp_path, f"based_on: gb200-nvl72\nnode: {{{text}}}\n").node
        return node.launch_factor, node.torch_launch_factor

    assert factors("nics: 2") == (2.75, 1.25)
    assert factors("launch_factor: 2x") == (2.0, None)
    assert factors("torch_launch_factor: 2x") == (2.75, 2.0)
    assert factors("launch_factor: 3x, torch_launch_factor: 2x") == (3.0, 2.0)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("fast", "bad-value"),
        ("yes", "bad-value"),
        ("[2]", "bad-value"),
        ("0x", "out-of-range"),
        ("-2x", "out-of-range"),
        ("nan", "out-of-range"),
        ("10.1x", "out-of-range"),
        ("0.09x", "out-of-range"),
    ],
)
def test_launches_that_cannot_be_meant(text: str, code: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, f"based_on: h100-dgx\nnode:\n  launch_factor: {text}\n")
    assert (refused.value.code, refused.value.where) == (code, f"{tmp_path / 'cluster.yaml'}:3")


@pytest.mark.parametrize(
    ("value", "code"), [("2", "bad-value"), (True, "bad-value"), (None, "bad-value"), (0.0, "out-of-range")]
)
def test_launches_of_nodes_made_in_python_are_checked(value: Any, code: str) -> None:
    for name in ("launch_factor", "torch_launch_factor"):
        if value is None and name == "torch_launch_factor":
            continue
        with pytest.raises(InputError) as refused:
            replace(presets.node("dgx-h100"), **{name: value})
        assert refused.value.code == code


def test_networks_may_write_their_ratio(tmp_path: Path) -> None:
    assert read(tmp_path, "based_on: h100-dgx\noversubscription: 3:1\n").oversubscription == 3.0


def test_a_job_may_use_part_of_each_domain(tmp_path: Path) -> None:
    cluster = read(tmp_path, "based_on: gb200-nvl72\ndomain_gpus: 64\n")
    assert (cluster.domain_gpus, cluster.node.domain_gpus) == (64, 72)
    for gpus, code in ((66, "not-divisible"), (76, "out-of-range")):
        with pytest.raises(InputError) as caught:
            read(tmp_path, f"based_on: gb200-nvl72\ndomain_gpus: {gpus}\n")
        assert (caught.value.code, caught.value.where) == (code, f"{tmp_path / 'cluster.yaml'}:2")


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (TEN_LINES.replace("400Gbps", "400 apples"), 5, 'has the unknown unit "apples"'),
        (TEN_LINES.replace("400Gbps", "8GB "), 5, 'bandwidth "8GB" has the unknown unit "GB"'),
        (TEN_LINES.replace("400Gbps", "400"), 5, "has no unit"),
        (TEN_LINES.replace("400Gbps", "400bps"), 5, "nic 400bps is 50.0 B/s, which cannot be meant"),
        (TEN_LINES.replace("400Gbps", "-400Gbps"), 5, "is negative"),
        (TEN_LINES.replace("400Gbps", "nan"), 5, "is not a finite number"),
        (TEN_LINES.replace("400Gbps", "cx9"), 5, 'no NIC is called "cx9"; did you mean'),
        (TEN_LINES.replace("gpu: h100-sxm", "gpu: a100"), 3, '"a100" may be any of 4 GPUs'),
        (TEN_LINES.replace("gpus: 8", "gpus: 0"), 4, "gpus 0 cannot be meant"),
        (TEN_LINES.replace("gpus: 8", "gpus: 7.5"), 4, "is not whole"),
        (TEN_LINES.replace("  gpus: 8\n", ""), 3, "field gpus is missing"),
        (TEN_LINES.replace("128", "9e12"), 7, "which cannot be meant"),
        (TEN_LINES.replace("nodes: 128", "nods: 128"), 7, 'field "nods" is not known; did you mean node'),
        (TEN_LINES.replace("on: 2", "on: 0.5"), 8, "oversubscription 0.5 cannot be meant"),
        (TEN_LINES + "aliases: [mine]\n", 9, 'field "aliases" is not known'),
        (TEN_LINES + "  domain_gpus: 8\n", 9, "not valid YAML"),
        (TEN_LINES.replace("  nics: 8", "  domain_gpus: 3"), 6, "domains of 3 GPUs do not fit nodes of 8"),
        (TEN_LINES.replace("  nics: 8", "  switched: perhaps"), 6, "is neither yes nor no"),
        (OWN_GPU.replace("64GiB", "64"), 2, "memory 64 is 64 B, which cannot be meant"),
        (OWN_GPU.replace("64GiB", "64GB/s"), 2, 'size "64GB/s" has the unknown unit'),
        (OWN_GPU.replace("500TFLOPS", "500"), 2, "has no unit"),
        (OWN_GPU.replace("bf16", "bf15"), 2, 'field "bf15" is not known; did you mean bf16?'),
        (OWN_GPU.replace(", bf16: 500TFLOPS", ""), 2, "field bf16 is missing"),
        (OWN_GPU.replace("TFLOPS}", "TFLOPS, links: 6}"), 2, "links are given without link_bandwidth"),
        (OWN_GPU.replace("TFLOPS}", "TFLOPS, link_bandwidth: 6GB/s}"), 2, "for a GPU without links"),
        (OWN_GPU.replace("gpus: 4", "gpus: 4\n  domain_gpus: 4"), 4, "has no links"),
        ("nodes: 4\n", 1, "field node is missing"),
        ("node: [dgx-h100]\n", 1, "expected a mapping with gpu and gpus and nic, or with based_on"),
        ("node: &again {gpu: *again, gpus: 1, nic: cx7}\n", 1, "an alias stands for what it is part of"),
        ("based_on: ./cluster.yaml\n", 1, 'no cluster is called "./cluster.yaml"'),
        ("- 1\n", 1, "expected a mapping with node, or with based_on"),
        ("12\n", 1, "expected a mapping with node, or with based_on"),
    ],
)
def test_what_is_refused_with_its_line(tmp_path: Path, text: str, line: int, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, text)
    assert problem in refused.value.message
    assert refused.value.where == f"{tmp_path / 'cluster.yaml'}:{line}"
    assert refused.value.hint


def test_a_file_is_told_from_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours").write_text("based_on: h100-dgx\nnodes: 3\n", encoding="utf-8")
    (tmp_path / "h100-dgx").write_text("nonsense", encoding="utf-8")
    (tmp_path / "h200").mkdir()
    assert presets.cluster("ours").nodes == 3
    assert presets.cluster("h100-dgx").nodes is None  # ./h100-dgx would be the file
    assert presets.cluster("h200").name == "h200-dgx"
    for missing in ("./missing", "missing.yaml", "a\0b.yaml"):
        with pytest.raises(InputError, match="cannot read the cluster"):
            presets.cluster(missing)


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    assert read(tmp_path, "based_on: h100-dgx\nnodes: 1\n").nodes == 1
    assert read(tmp_path, "based_on: h100-dgx\nnodes: 2\n").nodes == 2


def test_clusters_travel_between_processes(tmp_path: Path) -> None:
    cluster = read(tmp_path, TEN_LINES)
    assert pickle.loads(pickle.dumps(cluster)) == cluster


@given(st.sampled_from([TEN_LINES, OWN_GPU]), st.data())
def test_a_mangled_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 12))
    put = data.draw(st.text("{}[]&*:-#'\"\n 019GTiBbps/x\t", max_size=6))
    try:
        cluster = read(tmp_path_factory.getbasetemp(), text[:at] + put + text[at + cut :])
    except InputError as error:
        assert error.hint
    else:
        assert cluster.node.gpus >= 1
        assert cluster.node.nic.bytes_per_s >= 1e6


def test_the_snippets_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs/clusters.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert len(snippets) == 3
    first, second, third = (read(tmp_path, snippet) for snippet in snippets)
    assert (first.gpus, first.oversubscription) == (1024, 2.0)
    assert (second.gpu.memory_bytes, second.node.nics) == (96 * GIB, 4)
    assert (third.gpu.peak_flops["fp8"], third.node.nics) == (16e15, 8)


def test_the_page_lists_the_presets() -> None:
    page = (ROOT / "docs/clusters.md").read_text(encoding="utf-8")
    for name in presets.names("cluster"):
        node = presets.cluster(name).node
        how = "switched" if node.switched else "direct"
        row = f"| `{name}` | `{node.name}` | {node.gpus} × `{node.gpu.name}` | {node.domain_gpus}, {how} | "
        assert row + f"{node.nics} × {node.nic.bytes_per_s * 8 / 1e9:g} Gb/s |" in page
    for name in (*presets.names("gpu"), *presets.names("nic")):
        assert f"`{name}`" in page
