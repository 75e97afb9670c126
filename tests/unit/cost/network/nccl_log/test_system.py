"""NCCL_TOPO_DUMP_FILE: GPUs, NVLinks, NICs and PCIe of a node."""

from __future__ import annotations

import pytest

from foretrace.basics.errors import InputError
from foretrace.cost.network.nccl_log.system import EXPECTED, System, system_of
from foretrace.cost.network.nccl_log.xml import parse_xml

NODE = b"""<system version="1">
  <cpu host_hash="0x1" numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="207">
    <pci busid="0000:16:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:18:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="0000:07:00.0" count="5" tclass="0x068000"/>
          <nvlink target="0000:06:00.0" count="13" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:19:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" speed="400000" port="1" latency="0.000000" guid="0xa8" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
    <nic>
      <net name="eth0" dev="1" speed="25000" port="1"/>
    </nic>
  </cpu>
</system>
"""


def parse_system(data: bytes, name: str) -> System:
    return system_of(parse_xml(data, name, EXPECTED), name)


def test_gpus_links_and_nics() -> None:
    system = parse_system(NODE, "topo.xml")
    (gpu,) = system.gpus
    assert (gpu.dev, gpu.sm, gpu.links, gpu.switched) == (0, 90, 18, True)
    assert [nic.name for nic in system.nics] == ["mlx5_0", "eth0"]
    assert [nic.bytes_per_s for nic in system.fastest_nics] == [50e9]


def test_pcie_is_the_narrowest_link_on_the_way() -> None:
    system = parse_system(NODE, "topo.xml")
    assert system.gpus[0].pcie_bytes_per_s == pytest.approx(16 * 16e9 / 8 * 128 / 130)
    assert system.nics[0].pcie_bytes_per_s == pytest.approx(16 * 32e9 / 8 * 128 / 130)
    assert system.nics[1].pcie_bytes_per_s == 0.0


def test_virtual_machines_do_not_say_their_pcie() -> None:
    hidden = NODE.replace(b'link_speed="32.0 GT/s PCIe"', b'link_speed=""').replace(
        b'link_speed="16.0 GT/s PCIe" link_width="16"', b'link_speed="" link_width="0"'
    )
    assert parse_system(hidden, "topo.xml").gpus[0].pcie_bytes_per_s == 0.0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<system version='1'></system>", "no GPU is listed"),
        (b"<graphs version='1'/>", "<graphs> instead of <system>"),
        (NODE.replace(b'count="5"', b'count="many"'), 'count "many"'),
        (NODE.replace(b'speed="400000"', b'speed="-1"'), 'speed "-1" is negative'),
    ],
)
def test_what_cannot_be_meant_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_system(data, "topo.xml")
