"""`foretrace network` as a person runs it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

from foretrace import Machine
from foretrace.cli import network
from foretrace.simulation.network.network import NetworkTable, ask_network, network_table
from shared_files import ROOT
from unit.cli.command_line import answer_of, call

ON = ("--cluster", "h100-dgx", "--prices", "model")


def test_one_answer(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer_of(capsys, "network", "all-reduce", "256MiB", "--ranks", "64", *ON)
    assert result["schema"] == "foretrace.network/1"
    assert (result["collective"], result["size_bytes"]) == ("all-reduce", 2**28)
    assert (result["ranks"], result["nodes"], result["ranks_per_node"]) == (64, 8, 8)
    assert 0 < result["bound_s"] <= result["time_s"]
    assert result["bound_share"] == pytest.approx(result["bound_s"] / result["time_s"])
    assert result["algbw_bytes_per_s"] == pytest.approx(2**28 / result["time_s"])
    assert result["busbw_bytes_per_s"] == pytest.approx(2 * 63 / 64 * 2**28 / result["time_s"])
    low, high = result["band_s"]
    assert low <= result["time_s"] <= high
    assert 0 <= result["latency_s"] <= result["time_s"]
    assert result["algorithm"] and result["source"]
    assert result["limit"]["kind"] == "channels" and result["limit"]["name"] and 0 < result["limit"]["share"] <= 1
    assert 0 < result["nic_bytes_per_s"] < 50e9


def test_the_screen_says_what_the_json_says(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer_of(capsys, "network", "all-reduce", "256MiB", "--ranks", "64", *ON)
    assert call("network", "all-reduce", "256MiB", "--ranks", "64", *ON) == 0
    screen = capsys.readouterr().out
    assert "all-reduce of 256 MiB · 64 GPUs of h100-dgx, 8 nodes × 8" in screen
    assert f"{result['busbw_bytes_per_s'] / 1e9:.0f} GB/s bus bandwidth" in screen
    assert f"{result['nic_bytes_per_s'] / 1e9:.1f} GB/s per NIC" in screen
    assert result["limit"]["name"] in screen and result["algorithm"] in screen
    assert "\x1b" not in screen and "│" not in screen  # no colour or boxes in a pipe


def test_a_table_over_sizes_and_its_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg, out = tmp_path / "busbw.svg", tmp_path / "out.json"
    assert call("network", "all-gather", "1KiB..1MiB:x32", *ON, "--plot", svg, "-o", out) == 0
    printed = capsys.readouterr()
    head = next(line for line in printed.out.splitlines() if "busbw" in line)
    assert head.split()[:4] == ["size", "time", "algbw", "GB/s"]
    assert [line.split()[:2] for line in printed.out.splitlines() if "iB " in line] == [
        ["1", "KiB"],
        ["32", "KiB"],
        ["1", "MiB"],
    ]
    assert "one node" in printed.out and str(svg) in printed.err
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["schema"] == "foretrace.network-table/1"
    assert [point["size_bytes"] for point in result["points"]] == [1024, 32768, 2**20]
    times = [point["time_s"] for point in result["points"]]
    assert times == sorted(times)
    titles = [one.text for one in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 3


def test_a_table_over_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer_of(capsys, "network", "rs", "64MiB", "--ranks", "4..32", "--ranks-per-node", "4", *ON)
    points = result["points"]
    assert [(point["ranks"], point["nodes"]) for point in points] == [(4, 1), (8, 2), (16, 4), (32, 8)]
    assert all(point["collective"] == "reduce-scatter" for point in points)


def test_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("network", "all-reduce", "1MiB,1GiB", "--ranks", "8,64", *ON) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "iB" in line]
    assert [(row[0], row[2]) for row in rows] == [("8", "1"), ("8", "1"), ("64", "1"), ("64", "1")]


def test_groups_share_the_nics_of_their_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight rings of one rank per node have a NIC each, as one has alone; nodes with one NIC have to share it."""
    words = ("network", "all-reduce", "1GiB", "--ranks", "16", "--ranks-per-node", "1")
    alone, beside = answer_of(capsys, *words, *ON), answer_of(capsys, *words, *ON, "--groups", "8")
    assert beside["groups"] == 8 and beside["nodes"] == 16
    assert beside["time_s"] == pytest.approx(alone["time_s"])


def test_one_rank_takes_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer_of(capsys, "network", "all-reduce", "1MiB", "--ranks", "1", *ON)
    assert result["time_s"] == 0 and result["busbw_bytes_per_s"] is None
    assert "nobody" in result["diagnostics"][-1]["message"]
    assert call("network", "all-reduce", "1MiB", "--ranks", "1", *ON) == 0
    assert "0 s" in capsys.readouterr().out
    assert call("network", "all-reduce", "1MiB", "--ranks", "1,2", *ON) == 0


def test_a_transfer_is_between_two(capsys: pytest.CaptureFixture[str]) -> None:
    near = answer_of(capsys, "network", "send", "64MiB", *ON)
    far = answer_of(capsys, "network", "send", "64MiB", *ON, "--ranks-per-node", "1")
    assert near["ranks"] == 2 and near["nodes"] == 1 and far["nodes"] == 2
    assert near["time_s"] < far["time_s"]
    assert near["busbw_bytes_per_s"] == near["algbw_bytes_per_s"]


def test_a_barrier_has_no_size(capsys: pytest.CaptureFixture[str]) -> None:
    result = answer_of(capsys, "network", "barrier", "--ranks", "64", *ON)
    assert result["time_s"] > 0 and result["busbw_bytes_per_s"] is None and result["algorithm"]
    assert call("network", "barrier", "--ranks", "64", *ON) == 0
    screen = capsys.readouterr().out
    assert "barrier · 64 GPUs" in screen and "Runs as" in screen and "Rate" not in screen
    assert call("network", "barrier", "1MiB", *ON) == 3
    assert "no size" in capsys.readouterr().err


def test_gpus_of_each_domain(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("network", "all-to-all", "64MiB", "--ranks", "256", "--cluster", "gb200-nvl72")
    result = answer_of(capsys, *words)
    assert (result["domains"]["most_gpus"], result["domains"]["segment"]) == (64, 16)
    assert "domain-gpus" in [note["code"] for note in result["diagnostics"]]
    page = (ROOT / "docs/json.md").read_text(encoding="utf-8")
    assert all(f"`{key}`" in page for key in result["domains"])
    chosen = answer_of(capsys, *words, "--domain-gpus", "32")
    assert chosen["domains"]["most_gpus"] == 32 and chosen["time_s"] > result["time_s"]
    assert call(*words, "--domain-gpus", "30") == 3
    assert call(*words, "--domain-gpus", "32", "--placement", "hosts") == 2
    points = answer_of(capsys, *words[:4], "128,256", *words[5:])["points"]
    assert [(point["domains"]["domains"], point["domains"]["most_gpus"]) for point in points] == [(2, 64), (4, 64)]


def test_flows_on_links_and_their_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg = tmp_path / "links.svg"
    words = ("network", "all-to-all", "64MiB", "--ranks", "16", "--network", "flow", "--cluster", "h100-dgx")
    result = answer_of(capsys, *words, "--heatmap", svg)
    assert result["network"] == "flow" and result["source"] == "messages on the links of h100-dgx"
    hot = result["flow"]["hot"]
    assert hot[0]["utilisation"] == max(one["utilisation"] for one in hot) <= 1
    assert {"NIC", "leaf"} <= set(hot[0]["link"].split())
    page = (ROOT / "docs/json.md").read_text(encoding="utf-8")
    assert all(f"`{key}`" in page for key in (*result["flow"], *hot[0]))
    cells = list(ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}title"))
    assert len(cells) > 64
    assert call(*words) == 0
    screen = capsys.readouterr().out
    assert "on links" in screen and "by formulas" in screen and hot[0]["link"] in screen
    assert call(*words[:2], "1MiB,64MiB", *words[3:]) == 0
    assert "by formulas" in capsys.readouterr().out


@pytest.mark.skipif(find_spec("ns") is not None, reason="ns-3 is installed")
def test_packets_need_ns3(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("network", "all-reduce", "1MiB", "--network", "packets", "--cluster", "h100-dgx") == 2
    assert "foretrace[packets]" in capsys.readouterr().err


def test_maps_of_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg = tmp_path / "links.svg"
    job = ROOT / "examples" / "moe_128gpu.txt"
    assert call("simulate", job, "--cluster", "h100-dgx", "--heatmap", svg) == 0
    printed = capsys.readouterr()
    assert "how busy the links are" in printed.out and "the hottest" in printed.out and str(svg) in printed.err
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert call("simulate", job, "--cluster", "h100-dgx", "--heatmap", tmp_path / "links.png") == 2
    assert "pictures are written as SVG" in capsys.readouterr().err


def test_a_placement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=3\nb slots=1\n", encoding="utf-8")
    result = answer_of(capsys, "network", "all-reduce", "1MiB", "--ranks", "4", "--placement", hosts, *ON)
    assert result["nodes"] == 2 and result["ranks_per_node"] == 3
    assert call("network", "all-reduce", "1MiB", "--ranks", "4", "--placement", hosts, *ON) == 0
    assert "2 nodes, at most 3 on each" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("all-reduce",), 2, "how many bytes"),
        (("all-reduce", "1MiB"), 2, "[needs-cluster]"),
        (("allredcue", "1MiB", *ON), 3, "did you mean all-reduce"),
        (("all-reduce", "1MiB", "--cluster", "h100-dxg"), 3, "h100-dgx"),
        (("all-reduce", "0", *ON), 3, "0 bytes"),
        (("all-reduce", "1e30", *ON), 3, "is too large"),
        (("all-reduce", "lots", *ON), 3, "does not start with a number"),
        (("all-reduce", "1MiB", "--ranks", "0", *ON), 3, "0 ranks"),
        (("all-reduce", "1MiB", "--ranks", "1e12", *ON), 3, "more than any machine has"),
        (("all-reduce", "1MiB", "--ranks", "64..8", *ON), 2, "64 is more than 8"),
        (("all-reduce", "1GiB..1MiB", *ON), 2, "1.00 GiB is more than 1.00 MiB"),
        (("all-reduce", "1MiB", "--ranks-per-node", "9", "--ranks", "64", *ON), 2, "9 ranks do not fit"),
        (("all-reduce", "1MiB", "--ranks-per-node", "0", *ON), 2, "ranks-per-node"),
        (("all-reduce", "1MiB", "--placement", "x", "--ranks-per-node", "1", *ON), 2, "leave out --ranks-per-node"),
        (("all-reduce", "1MiB", "--placement", "no-such-file", *ON), 3, "no-such-file"),
        (("all-reduce", "1MiB", "--collectives", "no-such-file", *ON), 3, "no-such-file"),
        (("send", "1MiB", "--ranks", "4", *ON), 3, "between 2 ranks"),
        (("all-reduce", "1MiB", "--plot", "out.png", *ON), 2, "SVG"),
        (("all-reduce", "1MiB", "--heatmap", "out.svg", *ON), 2, "--network flow"),
        (("all-reduce", "1MiB", "--plot", "a.svg", "-o", "a.svg", *ON), 2, "[output-overwrites-input]"),
        (("all-reduce", "1MiB", "--nccl-algo", "rign", *ON), 3, "Ring"),
        (("broadcast", "1MiB", "--nccl-algo", "tree", *ON), 3, "no way to run"),
        (("dispatch", "1MiB", "--way", "style=pigeon", *ON), 3, "does not say how"),
        (("all-reduce", "1MiB", "--network", "magic", *ON), 2, "magic"),
    ],
)
def test_what_cannot_be_asked(words: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("network", *words) == code
    printed = capsys.readouterr()
    assert said in printed.err and printed.out == ""
    assert "Traceback" not in printed.err


def test_an_interrupt_keeps_what_is_finished(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    question = ask_network("all-reduce", Machine("h100-dgx", prices="model"))

    def starts(done: int, _: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    found = network_table(question, [2**20, 2**21, 2**30], [8], starts)
    assert found.interrupted and len(found.answers) == 2
    with pytest.raises(KeyboardInterrupt):
        network_table(question, [2**20], [8], lambda *_: starts(2, 3))

    def stopped(*_: object) -> NetworkTable:
        return found

    monkeypatch.setattr(network, "network_table", stopped)
    words = ("network", "all-reduce", "1MiB,2MiB,1GiB", *ON)
    assert call(*words) == 130
    assert "interrupted: 2 rows are finished" in capsys.readouterr().out
    assert call(*words, "--json") == 130
    result = json.loads(capsys.readouterr().out)
    assert result["interrupted"] and len(result["points"]) == 2


def test_a_terminal_gets_the_curve(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert call("network", "all-reduce", "1KiB..1GiB", *ON) == 0
    screen = capsys.readouterr().out
    assert "both logarithmic" in screen
    assert any("\u2801" <= sign <= "\u28ff" for sign in screen)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [line.split()[1:] for line in network.EXAMPLES.splitlines() if line.startswith("foretrace ")]
    assert len(commands) >= 3
    for words in commands:
        assert call(*words) == 0
    assert capsys.readouterr().out.count("busbw") == 2


def test_the_json_page_names_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/json.md").read_text(encoding="utf-8")
    own = page[page.index("`foretrace.network/1`") : page.index("## `foretrace inspect")]
    one = answer_of(capsys, "network", "all-reduce", "1MiB", *ON)
    table = answer_of(capsys, "network", "all-reduce", "1MiB,2MiB", *ON)
    for key in (*one, *table, *one["candidates"][0], *one["limit"]):
        assert f"`{key}`" in own, key
