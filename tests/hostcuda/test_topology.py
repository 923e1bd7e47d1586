"""The topology file: what `psmkit lab topology` writes is what CUDA and NVML then say; wrong files are told with their line."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from psmkit.cli.app import main
from psmkit.lab.cuda import LabError
from psmkit.lab.topology import Machine

from .conftest import Child, emulated

pytestmark = emulated

SAY = """
import json
nvml = Face('nvml'); nvml.ok.nvmlInit_v2()
n = new('int *'); ok.cudaGetDeviceCount(n)
d, pci, fields = nvml.new('nvmlDevice_t *'), nvml.new('nvmlPciInfo_t *'), nvml.new('nvmlFieldValue_t[1]')
out = []
for i in range(n[0]):
    text, name = new('char[32]'), nvml.new('char[96]')
    ok.cudaDeviceGetPCIBusId(text, 32, i)
    nvml.ok.nvmlDeviceGetHandleByPciBusId_v2(ffi.string(text), d)
    nvml.ok.nvmlDeviceGetName(d[0], name, 96)
    fields[0].fieldId = nvml.NVML_FI_DEV_NVLINK_LINK_COUNT
    nvml.ok.nvmlDeviceGetFieldValues(d[0], 1, fields)
    row = {'pci': ffi.string(text).decode().lower(), 'name': nvml.ffi.string(name).decode(), 'links': fields[0].value.uiVal}
    a = new('int *')
    for key, attr in (('rdma', rt.cudaDevAttrGPUDirectRDMASupported), ('numa', rt.cudaDevAttrHostNumaId), ('major', rt.cudaDevAttrComputeCapabilityMajor), ('minor', rt.cudaDevAttrComputeCapabilityMinor)):
        ok.cudaDeviceGetAttribute(a, attr, i)
        row[key] = a[0]
    ok.cudaSetDevice(i)
    free, total = new('size_t *'), new('size_t *'); ok.cudaMemGetInfo(free, total)
    row['memory'] = total[0]
    ends = {}
    for link in range(18):
        if nvml.nvmlDeviceGetNvLinkRemotePciInfo_v2(d[0], link, pci) == 0:
            end = nvml.ffi.string(pci.busId).decode().lower()[4:]
            ends[end] = ends.get(end, 0) + 1
    row['ends'] = ends
    u = new('unsigned int *')
    uuid = nvml.new('char[96]'); nvml.ok.nvmlDeviceGetUUID(d[0], uuid, 96); row['uuid'] = nvml.ffi.string(uuid).decode()
    out.append(row)
print(json.dumps(out))
"""


def logged(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What hostcuda said in the log, which NCCL's lines go to: standard output."""
    return [line for line in (done.stdout + done.stderr).splitlines() if " NCCL " in line and "hostcuda: " in line]


def printed(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The words that the child printed beside the log."""
    return [word for line in done.stdout.splitlines() if " NCCL " not in line for word in line.split()]


def said(child: Child, file: Path, **env: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(child(SAY, env={"PSM_TOPOLOGY": str(file), **env}).stdout)
    return found


@pytest.mark.parametrize(
    "machine",
    [
        Machine(),
        Machine(gpus=4, nodes=2, link="nvlink", numa_nodes=2),
        Machine(gpus=9, link="pcie", compute=(8, 0), memory="40 GiB"),
        Machine(gpus=1, compute=(7, 0), memory="512 MiB", rdma=True),
    ],
    ids=lambda m: f"{m.gpus}-{m.link}",
)
def test_written_topology_and_xml_agree_with_cuda_and_nvml(child: Child, tmp_path: Path, machine: Machine) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(machine.toml())
    rows = said(child, file, PSM_NODE=str(machine.nodes - 1))
    assert [r["pci"] for r in rows] == [g.pci for g in machine.members]
    assert [r["numa"] for r in rows] == [g.numa for g in machine.members]
    assert {r["name"] for r in rows} == {machine.name}
    assert {(r["major"], r["minor"]) for r in rows} == {machine.compute}
    assert {r["links"] for r in rows} == {machine.links}
    assert {r["rdma"] for r in rows} == {int(machine.rdma)}
    number, unit = machine.memory.split()
    assert {r["memory"] for r in rows} == {int(number) << {"MiB": 20, "GiB": 30}[unit]}
    system = ElementTree.fromstring(machine.xml())
    assert (system.tag, system.get("version")) == ("system", "1")
    assert [int(c.get("numaid", "")) for c in system.findall("cpu")] == list(range(machine.numa_nodes))
    gpus = {pci.get("busid"): pci for pci in system.iter("pci") if pci.find("gpu") is not None}
    assert list(gpus) == [r["pci"] for r in rows]
    for row in rows:
        gpu = gpus[row["pci"]].find("gpu")
        assert gpu is not None
        assert gpu.get("sm") == f"{row['major']}{row['minor']}"
        assert {link.get("target"): int(link.get("count", "")) for link in gpu.findall("nvlink")} == row["ends"]


def test_xml_has_the_network_cards_that_were_asked_for() -> None:
    system = ElementTree.fromstring(Machine(gpus=2, numa_nodes=2, nics=3).xml())
    nets = [net.get("dev") for net in system.findall("cpu/pci/nic/net")]
    assert sorted(map(str, nets)) == ["0", "1", "2"]
    assert {net.get("dev") for net in system.findall("cpu[@numaid='1']/pci/nic/net")} == {"2"}


def test_gpus_of_other_nodes_are_other_gpus(child: Child, tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    file.write_text(Machine(gpus=2, nodes=2).toml())
    first, second = said(child, file, PSM_NODE="0"), said(child, file, PSM_NODE="1")
    assert len({r["uuid"] for r in first + second}) == 4
    assert said(child, file, PSM_NODE="0") == first


def test_tables_change_single_gpus_and_links(child: Child, tmp_path: Path) -> None:
    file = tmp_path / "odd.toml"
    file.write_text(
        """
        gpus = 3   # a comment
        nodes = 2
        link = "pcie"
        [[gpu]]
        index = 1
        node = 0
        name = "Another # GPU"
        compute = "8.0"
        memory = "1 GiB"
        pci = "0001:aa:00.0"
        numa = 1
        uuid = "GPU-00112233-4455-6677-8899-aabbccddeeff"
        [[gpu]]
        index = 1
        node = 1
        name = "not here"
        [[link]]
        from = 2
        to = 0
        kind = "nvlink"
        count = 3
        """
    )
    rows = said(child, file)
    assert rows[1] == {
        "pci": "0001:aa:00.0",
        "name": "Another # GPU",
        "links": 0,
        "rdma": 0,
        "numa": 1,
        "major": 8,
        "minor": 0,
        "memory": 1 << 30,
        "ends": {},
        "uuid": "GPU-00112233-4455-6677-8899-aabbccddeeff",
    }
    assert rows[0]["ends"] == {"0000:52:00.0": 3}
    assert rows[2]["ends"] == {"0000:1b:00.0": 3}


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("gpus = 65\n", 1, "expects 0 to 64"),
        ("gpus = four\n", 1, "whole number"),
        ("gpus = 04\n", 1, "whole number"),
        ("gpus = 4\ngpus = 4\n", 2, "given twice"),
        ("\n# x\nspeed = 3\n", 3, "unknown key `speed`"),
        ("index = 3\n", 1, "unknown key `index`"),
        ("gpus 4\n", 1, "key = value"),
        ('link = "ethernet"\n', 1, "nvswitch"),
        ("link = nvlink\n", 1, '"text"'),
        ('link = "nvlink\n', 1, "no quote at its end"),
        ('link = "nvlink" x\n', 1, "after the value"),
        ("peer = yes\n", 1, "true or false"),
        ('memory = "80 GB"\n', 1, "KiB"),
        ('compute = "nine"\n', 1, "compute capability"),
        ('cuda = "9.2"\n', 1, "CUDA version"),
        ("[gpu]\n", 1, "[[gpu]]"),
        ("gpus = 2\n[[gpu]]\nnuma = 0\n", 2, "`index`"),
        ("gpus = 2\n[[gpu]]\nindex = 2\n", 2, "has 2 GPUs"),
        ("gpus = 2\n[[gpu]]\nindex = 0\nnode = 1\n", 2, "`nodes` is 1"),
        ('gpus = 2\n[[gpu]]\nindex = 0\npci = "1b"\n', 4, "PCI id"),
        ('gpus = 2\n[[gpu]]\nindex = 0\nuuid = "GPU-1"\n', 4, "32 hexadecimal"),
        ("gpus = 2\n[[link]]\nfrom = 0\n", 2, "`to`"),
        ("gpus = 2\n[[link]]\nfrom = 1\nto = 1\n", 2, "0 to 1"),
        ('gpus = 2\n[[gpu]]\nindex = 0\npci = "0000:43:00.0"\n', None, "same PCI id"),
        ('gpus = 32\nlink = "nvlink"\n', None, "NVLinks"),
        (None, None, "No such file"),
    ],
)
def test_wrong_file_is_named_with_its_line_and_nothing_works(
    child: Child, tmp_path: Path, text: str | None, line: int | None, says: str
) -> None:
    file = tmp_path / "wrong.toml"
    if text is not None:
        file.write_text(text)
    done = child(
        "n = new('int *'); print(rt.cudaGetDeviceCount(n), rt.cudaSetDevice(0))", env={"PSM_TOPOLOGY": str(file)}
    )
    assert printed(done) == ["3", "3"]
    place = f"{file}:{line}: " if line else f"{file}: "
    (warning,) = logged(done)
    assert f"NCCL WARN hostcuda: the topology cannot be used, so every CUDA call fails: {place}" in warning
    assert says in warning


@pytest.mark.parametrize("node", ["2", "-1", "x"])
def test_node_that_is_not_there_is_refused(child: Child, node: str) -> None:
    done = child("print(rt.cudaSetDevice(0))", env={"PSM_NODE": node})
    assert printed(done) == ["3"]
    assert "PSM_NODE" in logged(done)[0]


@pytest.mark.parametrize(("env", "lines"), [({"PSM_HOSTCUDA_BANNER": "1"}, 1), ({"PSM_HOSTCUDA_BANNER": "0"}, 0)])
def test_banner_is_one_line_of_the_log(child: Child, env: dict[str, str], lines: int) -> None:
    done = child(
        "ok.cudaFree(ffi.NULL); ok.cudaFree(ffi.NULL)", env={"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "", **env}
    )
    log = [line for line in logged(done) if "CUDA 13.5 is emulated" in line]
    assert len(log) == lines
    assert all("NCCL INFO hostcuda: " in line and "4 devices, strict, topology " in line for line in log)


def test_banner_names_the_rank_where_the_launcher_says_it(child: Child) -> None:
    env = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "", "PSM_HOSTCUDA_BANNER": "1"}
    done = child("ok.cudaFree(ffi.NULL)", env={**env, "OMPI_COMM_WORLD_RANK": "3"})
    assert any("is emulated on host memory for rank 3: 4 devices" in line for line in logged(done))
    done = child("ok.cudaFree(ffi.NULL)", env=env)
    assert any("is emulated on host memory: 4 devices" in line for line in logged(done))


# ---- the command ----


def test_command_writes_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toml, xml = tmp_path / "a.toml", tmp_path / "a.xml"
    assert (
        main(["lab", "topology", "--gpus", "2", "--nodes", "3", "--link", "pcie", "-o", str(toml), "--xml", str(xml)])
        == 0
    )
    machine = Machine(gpus=2, nodes=3, link="pcie")
    assert (toml.read_text(), xml.read_text()) == (machine.toml(), machine.xml())
    assert capsys.readouterr().out == ""
    assert main(["lab", "topology", "--gpus", "2"]) == 0
    assert capsys.readouterr().out == Machine(gpus=2).toml()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gpus", "0"], "1 to 64"),
        (["--gpus", "32", "--link", "nvlink"], "use nvswitch"),
        (["--memory", "80GB"], "80 GiB"),
        (["--compute", "1.0"], "9.0"),
        (["--compute", "x"], "9.0"),
        (["--numa-nodes", "9"], "1 to 8"),
        (["-o", "/nowhere/x"], "cannot write the topology: no such folder"),
        (["--xml", "/nowhere/x"], "cannot write the topology XML: no such folder"),
    ],
)
def test_command_refuses_what_cannot_be_pretended(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "topology", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_machine_that_cannot_be_is_an_error() -> None:
    with pytest.raises(LabError, match="NVLinks"):
        Machine(gpus=20, link="nvlink")
