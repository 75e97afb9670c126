"""What NCCL said on a user's machine, and what it changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretrace.basics.errors import InputError
from foretrace.cost.network import NcclSettings, network_of
from foretrace.cost.network.nccl.channels import ChannelGraph
from foretrace.cost.network.nccl_log.observations import Observed
from foretrace.cost.network.nccl_log.reader import observe
from foretrace.hardware import presets
from foretrace.program.columns import Collective

AR, AG = Collective.ALL_REDUCE, Collective.ALL_GATHER
H100 = presets.cluster("h100-dgx")
Put = Callable[[str, str | bytes], Path]

GRAPH = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="1" speedintra="30" speedinter="12" typeintra="NVL" typeinter="PIX">
    <channel><net dev="0"/>{gpus}<net dev="0"/></channel>
  </graph>
  <graph id="1" pattern="3" crossnic="0" nchannels="1" speedintra="20" speedinter="6" typeintra="NVL" typeinter="PIX">
    <channel><net dev="0"/>{gpus}<net dev="0"/></channel>
  </graph>
</graphs>
""".format(gpus="".join(f'<gpu dev="{dev}"/>' for dev in range(8)))

SYSTEM = """<system version="1"><cpu numaid="0">
  <pci busid="1" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
    <gpu dev="0" sm="90" rank="0"><nvlink target="2" count="18" tclass="0x068000"/></gpu>
  </pci>
  <pci busid="3" class="0x020000"><nic><net name="mlx5_0" dev="0" speed="200000"/></nic></pci>
  <pci busid="4" class="0x020000"><nic><net name="mlx5_1" dev="1" speed="200000"/></nic></pci>
  <nic><net name="eth0" dev="2" speed="25000"/></nic>
</cpu></system>
"""


def log(
    ranks: int = 16, nodes: int = 2, channels: int = 12, host: str = "n1", version: str = "2.21.5", rest: str = ""
) -> str:
    said = f"{host}:10:20 [0] NCCL INFO "
    return (
        f"NCCL version {version}+cuda12.4\n"
        f"{said}ncclCommInitRank comm 0xaa rank 0 nranks {ranks} cudaDev 0 busId 18000 - Init START\n"
        f"{said}Pattern 4, crossNic 0, nChannels 6, bw 40.000000/20.000000, type NVL/PIX, sameChannels 1\n"
        f"{said}Pattern 1, crossNic 0, nChannels 6, bw 48.000000/20.000000, type NVL/PIX, sameChannels 1\n"
        f"{said}Pattern 3, crossNic 0, nChannels 3, bw 10.000000/10.000000, type NVL/PIX, sameChannels 1\n"
        f"{said}comm 0xaa rank 0 nRanks {ranks} nNodes {nodes} localRanks {ranks // nodes} localRank 0 MNNVL 0\n"
        f"{said}{channels} coll channels, {channels} collnet channels, 0 nvls channels, "
        "16 p2p channels, 2 p2p channels per peer\n"
        f"{said}ncclCommInitRank comm 0xaa rank 0 nranks {ranks} cudaDev 0 busId 18000 - Init COMPLETE\n{rest}"
    )


def call(function: str, size: int, algorithm: str, protocol: str) -> str:
    way = f"Algo {algorithm} proto {protocol} channel{{Lo..Hi}}={{0..11}}"
    return f"n1:10:10 [0] NCCL INFO {function}: {size} Bytes -> {way}\n"


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def write(name: str, text: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_channels_of_a_log(put: Put) -> None:
    observed = observe([put("a.log", log())])
    assert observed.version == "2.21.5"
    graphs = network_graphs(observed, 16, 2)
    assert (graphs["ring"].channels, graphs["ring"].running) == (6, 12)
    assert (graphs["ring"].intra_bytes_per_s, graphs["ring"].inter_bytes_per_s) == (40e9, 20e9)
    assert graphs["tree"].intra_bytes_per_s == 48e9
    assert graphs["collnet-chain"].intra_bytes_per_s == 10e9, "the second search for a tree is CollNet's"
    assert graphs["pat"] == graphs["ring"], "PAT runs over the ring's channels"


def network_graphs(observed: Observed, gpus: int, nodes: int) -> dict[str, ChannelGraph]:
    names = ("ring", "tree", "pat", "nvls", "nvls-tree", "collnet-chain", "collnet-direct")
    return observed.applied_to({name: ChannelGraph(1, 1.0, 1.0) for name in names}, gpus, nodes)


@pytest.mark.parametrize(
    ("paths", "hopper", "nodes", "trusted"),
    [
        ("NVL/PIX", False, 2, True),
        ("NVL/PXN", False, 2, False),
        ("NVL/PXN", True, 2, True),
        ("NVL/SYS", True, 2, False),
        ("NVL/SYS", True, 1, True),
        ("PHB/PIX", True, 1, False),
    ],
)
def test_ll128_goes_where_nccl_trusts_the_paths(put: Put, paths: str, hopper: bool, nodes: int, trusted: bool) -> None:
    path = put("a.log", log(ranks=8 * nodes, nodes=nodes).replace("NVL/PIX", paths))
    assert observe([path]).trusts_ll128(hopper, 8 * nodes, nodes) is trusted
    network = network_of(H100, 16, nccl=NcclSettings(files=(path,)))
    (layout,), _ = network.layouts(np.arange(8 * nodes)[None])
    used = {network.explain(AG, layout, 2.0**power).protocol for power in range(10, 31)}
    assert ("ll128" in used) <= (trusted or not hopper)


def test_what_was_found_in_a_node_holds_for_any_number_of_them(put: Put) -> None:
    observed = observe([put("a.log", log())])
    assert network_graphs(observed, 256, 32)["ring"].running == 12
    assert network_graphs(observed, 8, 1)["ring"].running == 0, "but not within one"
    assert network_graphs(observed, 64, 16)["ring"].running == 0, "nor with fewer GPUs of each"
    assert network_graphs(observed, 17, 2)["ring"].running == 0


def test_channels_of_a_dump_of_graphs(put: Put) -> None:
    observed = observe([put("graph.xml", GRAPH)])
    graphs = network_graphs(observed, 64, 8)
    assert (graphs["ring"].channels, graphs["ring"].intra_bytes_per_s, graphs["tree"].inter_bytes_per_s) == (
        1,
        30e9,
        6e9,
    )


def test_a_choice_counts_between_the_sizes_that_were_run(put: Put) -> None:
    calls = call("AllReduce", 1024, "TREE", "LL") + call("AllReduce", 1 << 20, "RING", "SIMPLE")
    observed = observe([put("a.log", log(rest=calls))])
    assert observed.choice(AR, 1024, 16, 2) == ("tree", "ll")
    assert observed.choice(AR, 4096, 16, 2) == ("tree", "ll"), "nearer to 1 KiB, by its logarithm"
    assert observed.choice(AR, 1 << 18, 16, 2) == ("ring", "simple")
    assert observed.choice(AR, 1 << 20, 16, 2) == ("ring", "simple")
    assert observed.choice(Collective.BARRIER, 1024, 16, 2) == ("tree", "ll")
    for size, gpus, nodes in ((512, 16, 2), (1 << 21, 16, 2), (1024, 32, 4), (1024, 16, 4)):
        assert observed.choice(AR, size, gpus, nodes) is None


def test_a_seen_choice_wins_over_the_rule(put: Put) -> None:
    calls = call("AllReduce", 1024, "RING", "SIMPLE") + call("AllReduce", 1 << 30, "RING", "SIMPLE")
    seen, free = (
        network_of(H100, 16, nccl=said) for said in (NcclSettings(files=(put("a.log", log(rest=calls)),)), None)
    )
    (layout,), _ = free.layouts(np.arange(16)[None])
    ours, theirs = (one.explain(AR, layout, 65536.0) for one in (seen, free))
    assert (ours.algorithm, ours.protocol, ours.channels) == ("ring", "simple", 12)
    assert (theirs.algorithm, theirs.protocol) != ("ring", "simple")


def test_a_printed_table_decides_and_says_what_is_not_there(put: Put) -> None:
    said = "n1:10:20 [0] NCCL INFO "
    table = (
        f"{said}  Algorithm   |       Tree        |       Ring        |\n"
        f"{said}  Protocol    |     LL |  LL128 |  Simple |     LL |  LL128 |  Simple |\n"
        f"{said}    AllReduce |  99.0/  0.0 |  99.0/  0.0 |  9.0/  1.0 |  99.0/  0.0 |  99.0/  0.0 |  5.0/ 90.0 |\n"
    )
    text = log()
    at = text.index("ncclCommInitRank comm 0xaa rank 0 nranks 16 cudaDev 0 busId 18000 - Init COMPLETE") - len(said)
    network = network_of(H100, 16, nccl=NcclSettings(files=(put("a.log", text[:at] + table + text[at:]),)))
    (layout,), _ = network.layouts(np.arange(16)[None])
    assert {network.explain(AR, layout, size).protocol for size in (8.0, 1e5, 1e9)} == {"simple"}
    assert network.explain(AR, layout, 1e9).algorithm == "ring"


def test_nics_are_taken_over_and_said(put: Put) -> None:
    observed = observe([put("topo.xml", SYSTEM)])
    cluster, notes = observed.on(H100)
    assert (cluster.node.nics, cluster.node.nic.bytes_per_s) == (2, 25e9)
    assert ["2 NICs of 200 Gb/s in a node, h100-dgx has 8 of 400" in note.message for note in notes] == [True]
    same, silent = observed.on(cluster)
    assert same is cluster and not silent


def test_more_nics_than_any_node_has_are_an_error_of_the_file(put: Put) -> None:
    path = put("topo.xml", SYSTEM)
    with pytest.raises(InputError) as caught:
        replace(observe([path]), nics=2001).on(H100)
    assert (caught.value.code, caught.value.where) == ("out-of-range", str(path))


def test_another_kind_of_gpu_is_warned_of(put: Put) -> None:
    observed = observe([put("topo.xml", SYSTEM.replace('count="18"', 'count="12"'))])
    notes = [note.message for note in observed.on(H100)[1] if note.level == "warning"]
    assert any("12 NVLinks" in one for one in notes)
    other = observe([put("topo.xml", SYSTEM.replace('sm="90"', 'sm="80"'))])
    with pytest.raises(InputError) as caught:
        other.on(H100)
    assert caught.value.code == "other-gpu"


def test_what_the_machine_was_forced_to_is_kept_unless_the_user_says_otherwise(put: Put) -> None:
    path = put("a.log", log(rest="n1:10:20 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n"))
    assert NcclSettings(files=(path,)).forced.algorithm_text == "Ring"
    assert NcclSettings("tree", files=(path,)).forced.algorithm_text == "tree"
    assert any("NCCL_ALGO=Ring" in note.message for note in observe([path]).notes)
    odd = put("b.log", log(rest="n1:10:20 [0] NCCL INFO NCCL_ALGO set by environment to MSCCL\n"))
    assert not observe([odd]).forced and [note.code for note in observe([odd]).notes] == ["unknown-name"]


def test_two_machines_mixed_are_said(put: Put) -> None:
    observed = observe([put("a.log", log()), put("b.log", log(channels=8, host="n2", version="2.19.3"))])
    messages = [note.message for note in observed.notes if note.level == "warning"]
    assert any("2.19.3 and 2.21.5" in one for one in messages)
    assert any("8 and 12 channels: the fewest" in one for one in messages)
    assert network_graphs(observed, 16, 2)["ring"].running == 8
    other = SYSTEM.replace("200000", "400000")
    notes = observe([put("a.xml", SYSTEM), put("b.xml", other)]).notes
    assert any(note.code == "conflicting-values" for note in notes)


def test_older_logs_are_placed_by_their_hosts(put: Put) -> None:
    lines = [
        f"h{rank // 2}:{rank}:9 [0] NCCL INFO 2 coll channels, 2 p2p channels, 1 p2p channels per peer\n"
        f"h{rank // 2}:{rank}:9 [0] NCCL INFO comm 0x{rank} rank {rank} nranks 4 cudaDev 0 busId 1 - Init COMPLETE\n"
        for rank in range(4)
    ]
    observed = observe([put("a.log", "".join(lines))])
    assert [(one.gpus, one.nodes, one.running) for one in observed.observations] == [(4, 2, {"ring": 2, "tree": 2})]
    with pytest.raises(InputError) as caught:
        observe([put("b.log", lines[0])])
    assert caught.value.code == "nothing-to-do"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty.log", b"", "empty"),
        ("spaces.log", b"   \n ", "empty"),
        ("binary", b"\x7fELF\x00\x01\x02\x00NCCL INFO", "neither text nor XML"),
        ("other.txt", b"hello\n" * 100, "no line of the log is NCCL's"),
        ("cut.xml", GRAPH[:200].encode(), "no whole XML"),
        ("other.xml", b"<plist/>", "<plist> instead of <graphs>"),
        ("version.log", b"NCCL version 2.21.5\n", "nothing here that a price could use"),
    ],
)
def test_files_that_say_nothing(put: Put, name: str, data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        observe([put(name, data)])
    assert name in (error.value.where or "")


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        observe([tmp_path / "absent.log"])
    assert caught.value.code == "file-not-found"
    with pytest.raises(InputError) as caught:
        observe([tmp_path])
    assert caught.value.code == "folder-instead-of-file"


def test_prices_never_fall_with_bytes_whatever_was_seen(put: Put) -> None:
    ways = [("RING", "SIMPLE"), ("TREE", "LL"), ("RING", "LL"), ("TREE", "SIMPLE"), ("RING", "LL128")]
    calls = "".join(call("AllReduce", 1 << (10 + 3 * at), *way) for at, way in enumerate(ways * 2))
    network = network_of(H100, 16, nccl=NcclSettings(files=(put("a.log", log(rest=calls)),)))
    (layout,), _ = network.layouts(np.arange(16)[None])
    time = network.price(AR, layout, 2.0 ** np.arange(0, 44, 0.11)).duration_s
    assert (np.diff(time) >= 0).all()
