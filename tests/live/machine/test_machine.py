"""What a machine can do, told of machines that are made up."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from psmkit.live import holders
from psmkit.live.machine import Interface, Machine, checks
from psmkit.live.machine.environment import variables
from psmkit.live.machine.facts import Space
from psmkit.live.machine.network import chosen
from tests.live.machine.roots import GIB, LIMITS, bad, machine, of

ROOT = Path(__file__).parents[3]
MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n"


@pytest.fixture(autouse=True)
def machine_itself(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that stands for the pid namespace of the machine: tests link /proc/self/ns/pid to it."""
    namespace = tmp_path_factory.mktemp("ns") / "pid"
    namespace.touch()
    monkeypatch.setattr(holders, "_INITIAL_NAMESPACE", os.stat(namespace).st_ino)
    return namespace


def namespace(root: Path, target: Path) -> None:
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/ns/pid").symlink_to(target)


def test_bare_machine_has_no_problem(tmp_path: Path, machine_itself: Path) -> None:
    namespace(tmp_path, machine_itself)
    found = checks(machine(tmp_path))
    assert bad(found) == {}
    assert of(found, "container").level == "ok"
    assert of(found, "driver").level == "note" and "no NVIDIA driver is visible" in of(found, "driver").seen
    assert "take" in of(found, "interfaces").seen and "eth0 (10.0.0.5)" in of(found, "interfaces").seen
    assert "2 ranks may need 146 MiB (assumed" in of(found, "/dev/shm").seen
    assert all(c.why for c in found if c.level in ("warning", "error"))


def test_container_that_may_not_trace_gets_the_option_of_docker(tmp_path: Path) -> None:
    other = tmp_path / "container"
    other.touch()
    root = tmp_path / "root"
    namespace(root, other)
    m = machine(root, {"/proc/sys/kernel/yama/ptrace_scope": "1", "/proc/sys/kernel/hostname": "0a1b2c3d4e5f"})
    found = checks(m)
    assert of(found, "container").seen == "the pid namespace is not the machine's"
    trace = of(found, "permission to trace")
    assert trace.level == "warning" and "--cap-add SYS_PTRACE" in trace.do and "ptrace_scope 1" in trace.seen
    assert "NCCL_HOSTID" in of(found, "host name").do
    assert "from this container" in of(found, "driver").seen
    m.refused = "Operation not permitted"
    assert of(checks(m), "permission to trace").seen.startswith("Operation not permitted")


@pytest.mark.parametrize(
    ("scope", "capable", "level"),
    [
        ("0", False, "ok"),
        ("1", False, "warning"),
        ("1", True, "ok"),
        ("2", True, "ok"),
        ("2", False, "warning"),
        ("3", True, "warning"),
        ("", False, "ok"),
    ],
)
def test_permission_to_trace_is_scope_and_capability(tmp_path: Path, scope: str, capable: bool, level: str) -> None:
    status = f"CapEff:\t{(1 << 19) if capable else 0:016x}\nSeccomp:\t0\n"
    found = checks(machine(tmp_path, {"/proc/sys/kernel/yama/ptrace_scope": scope, "/proc/self/status": status}))
    assert of(found, "permission to trace").level == level


@pytest.mark.parametrize(
    ("users", "says"),
    [
        ("0 0 4294967295", "of other users, too, unless"),
        ("0 1000 1", "of other users of this user namespace, too, unless"),
    ],
)
def test_no_right_is_claimed_that_cannot_be_known(tmp_path: Path, users: str, says: str) -> None:
    status = f"CapEff:\t{1 << 19:016x}\nSeccomp:\t0\n"
    found = checks(machine(tmp_path, {"/proc/self/status": status, "/proc/self/uid_map": f"  {users}\n"}))
    seen = of(found, "permission to trace").seen
    assert says in seen and "not visible" in seen and "every user" not in seen


def test_machine_without_gdb_gets_its_own_command(tmp_path: Path) -> None:
    release = {"/usr/bin/gdb": None, "/etc/os-release": 'ID="rocky"\nID_LIKE="rhel centos fedora"\n'}
    gdb = of(checks(machine(tmp_path, release)), "gdb")
    assert (gdb.level, gdb.do) == ("warning", "sudo dnf install gdb")


# ---- memory --------------------------------------------------------------------------------------------------------


def test_small_shared_memory_is_told_by_ranks(tmp_path: Path) -> None:
    mounts = {"/proc/self/mounts": "shm /dev/shm tmpfs rw,size=65536k 0 0\n", "/.dockerenv": ""}
    m = machine(tmp_path, mounts, {"LOCAL_WORLD_SIZE": "8"})
    shm = of(checks(m), "/dev/shm")
    assert shm.level == "warning" and shm.seen == "tmpfs, 64 MiB" and "--shm-size=4g" in shm.do
    assert "8 ranks (LOCAL_WORLD_SIZE=8) may need 582 MiB" in shm.why
    assert of(checks(m, 1), "/dev/shm").level == "ok"  # --ranks wins
    m.room = Space(16 * GIB, 4 << 20, 1000, 900)
    full = of(checks(m), "/dev/shm")
    assert full.level == "warning" and full.do == "psmkit segments --reap" and "4 MiB free" in full.seen
    m.room = Space(16 * GIB, 16 * GIB, 1000, 3)
    assert "no room for more files" in of(checks(m), "/dev/shm").why


@pytest.mark.parametrize(("inside", "do"), [({"/.dockerenv": ""}, "--shm-size=89g"), ({}, "size=89g")])
def test_advised_size_of_shared_memory_holds_the_need(tmp_path: Path, inside: dict[str, str], do: str) -> None:
    """1000 ranks need 71.1 GiB, more with more channels."""
    shm = of(checks(machine(tmp_path, inside), 1000), "/dev/shm")
    assert "may need 71.1 GiB" in shm.why and do in shm.do


def test_machine_without_shared_memory_cannot_run(tmp_path: Path) -> None:
    assert of(checks(machine(tmp_path, {"/dev/shm/.keep": None})), "/dev/shm").level == "error"


def test_limits_are_judged_by_what_needs_them(tmp_path: Path) -> None:
    limits = {"/proc/self/limits": LIMITS.format(core=0, nproc=100, nofile=512, memlock=65536)}
    found = checks(machine(tmp_path / "1", limits))
    assert bad(found) == {"ulimit -n": "warning", "ulimit -u": "warning"}
    assert of(found, "ulimit -l").level == "note"  # nothing locks memory without adapters
    assert "LimitNOFILE" in of(found, "ulimit -n").do
    assert of(found, "core files").level == "note"
    adapter = {"/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE", "/dev/infiniband/uverbs0": ""}
    found = checks(machine(tmp_path / "2", {**limits, **adapter, "/.dockerenv": ""}))
    assert of(found, "ulimit -l").level == "warning" and "--ulimit memlock=-1" in of(found, "ulimit -l").do


# ---- GPUs and adapters ---------------------------------------------------------------------------------------------


def gpu_host(**more: str | bytes | None) -> dict[str, str | bytes | None]:
    """8 GPUs, 8 adapters."""
    files: dict[str, str | bytes | None] = {f"/dev/nvidia{n}": "" for n in range(8)}
    files |= {"/dev/nvidiactl": "", "/dev/nvidia-uvm": "", "/usr/bin/nvidia-smi": ""}
    files |= {"/proc/driver/nvidia/version": OPEN, "/usr/lib/x86_64-linux-gnu/libcuda.so.1": ""}
    for n in range(8):
        port = f"/sys/class/infiniband/mlx5_{n}/ports/1"
        files |= {
            f"{port}/state": "4: ACTIVE",
            f"{port}/rate": "400 Gb/sec (4X NDR)",
            f"{port}/link_layer": "InfiniBand",
        }
        files[f"/dev/infiniband/uverbs{n}"] = ""
    return {**files, **more}


def test_host_with_8_gpus_and_adapters_has_no_problem(tmp_path: Path) -> None:
    found = checks(machine(tmp_path, gpu_host()))
    assert bad(found) == {}
    assert of(found, "devices").seen == "8 GPUs"
    assert of(found, "driver").seen == "kernel module 550.54.15 (open)"
    assert "DMA-BUF" in of(found, "GPUDirect RDMA").seen
    assert of(found, "InfiniBand, RoCE").seen.count("ACTIVE") == 8
    assert "8 ranks may need 582 MiB (8 GPUs in /dev)" in of(found, "/dev/shm").seen


def test_what_a_gpu_host_lacks_is_told(tmp_path: Path) -> None:
    files = gpu_host()
    files |= {"/proc/driver/nvidia/version": MODULE, "/dev/nvidia-uvm": None}
    files |= {f"/dev/infiniband/uverbs{n}": None for n in range(8)}
    files["/sys/class/infiniband/mlx5_3/ports/1/state"] = "1: DOWN"
    found = checks(machine(tmp_path, files, {"NCCL_GDRCOPY_ENABLE": "1", "NCCL_IB_HCA": "mthca0"}))
    assert bad(found) == {
        "devices": "warning",
        "GPUDirect RDMA": "warning",
        "GDRCopy": "warning",
        "InfiniBand, RoCE": "warning",
        "NCCL_IB_HCA": "warning",
    }
    assert of(found, "GPUDirect RDMA").do == "sudo modprobe nvidia_peermem"
    assert "/dev/nvidia-uvm" in of(found, "devices").seen


def test_driver_without_devices_in_a_container(tmp_path: Path) -> None:
    found = checks(machine(tmp_path, {"/proc/driver/nvidia/version": MODULE, "/.dockerenv": ""}))
    assert of(found, "devices").do == "docker run --gpus all ..." and of(found, "libcuda").level == "warning"


def test_library_of_another_driver_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.535.104.05").touch()
    (folder / "libcuda.so.1").symlink_to("libcuda.so.535.104.05")
    files = gpu_host()
    del files["/usr/lib/x86_64-linux-gnu/libcuda.so.1"]
    found = of(checks(machine(tmp_path, files)), "libcuda")
    assert found.level == "warning" and "535.104.05, with kernel module 550.54.15" in found.seen


def bridge(control: int) -> bytes:
    """The configuration space of a PCI bridge whose second extended capability is ACS."""
    space = bytearray(4096)
    space[0x100:0x104] = (0x140 << 20 | 1 << 16 | 0x0001).to_bytes(4, "little")
    space[0x140:0x144] = (1 << 16 | 0x000D).to_bytes(4, "little")
    space[0x146:0x148] = control.to_bytes(2, "little")
    return bytes(space)


@pytest.mark.parametrize(
    ("space", "level"), [(bridge(0x1D), "warning"), (bridge(0), "ok"), (bridge(0x1D)[:64], "note"), (bytes(4096), "ok")]
)
def test_bridges_that_redirect_are_told(tmp_path: Path, space: bytes, level: str) -> None:
    files = gpu_host()
    files |= {
        "/sys/bus/pci/devices/0000:80:01.0/class": "0x060400\n",
        "/sys/bus/pci/devices/0000:80:01.0/config": space,
    }
    assert of(checks(machine(tmp_path, files)), "ACS").level == level


def test_iommu_is_told_unless_it_passes_through(tmp_path: Path) -> None:
    files = {**gpu_host(), "/sys/class/iommu/dmar0/name": ""}
    assert of(checks(machine(tmp_path / "1", files)), "IOMMU").level == "note"
    files["/proc/cmdline"] = "quiet intel_iommu=on iommu=pt"
    assert of(checks(machine(tmp_path / "2", files)), "IOMMU").level == "ok"


# ---- network -------------------------------------------------------------------------------------------------------

PORTS = [
    Interface("lo", True, "127.0.0.1", ("::1",)),
    Interface("docker0", True, "172.17.0.1"),
    Interface("eth0", True, "10.0.0.5", ("fe80::1",)),
    Interface("ib0", False, "10.1.0.5"),
    Interface("six", True, "", ("2001:db8::1",)),
    Interface("eth1", True),
]


@pytest.mark.parametrize(
    ("setting", "family", "names"),
    [
        ("", "", ["eth0", "six"]),
        ("", "AF_INET", ["eth0"]),
        ("", "AF_INET6", ["eth0", "six"]),
        ("eth", "", ["eth0"]),
        ("=eth", "", []),
        ("=eth0,docker0", "", ["docker0", "eth0"]),
        ("^docker,lo", "", ["eth0", "six"]),
        ("^=eth0", "", ["lo", "docker0", "six"]),
        ("eth9", "", []),
        ("lo", "AF_INET6", []),
    ],
)
def test_interfaces_are_chosen_as_nccl_chooses_them(setting: str, family: str, names: list[str]) -> None:
    assert [i.name for i in chosen(PORTS, setting, family)] == names


def test_ib_comes_first_and_loopback_last() -> None:
    up = [Interface("ib0", True, "10.1.0.5"), *PORTS[:3]]
    assert [i.name for i in chosen(up)] == ["ib0"]
    assert [i.name for i in chosen(PORTS[:2])] == ["docker0"]
    assert [i.name for i in chosen(PORTS[:1])] == ["lo"]


def test_interface_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    found = checks(machine(tmp_path, environ={"NCCL_SOCKET_IFNAME": "ens5"}))
    assert bad(found) == {"interfaces": "error"} and "ens5" in of(found, "interfaces").why


def test_host_whose_name_is_that_of_others_is_told(tmp_path: Path) -> None:
    found = of(checks(machine(tmp_path, {"/proc/sys/kernel/hostname": "localhost"})), "host name")
    assert found.level == "warning" and "same name" in found.why


# ---- settings ------------------------------------------------------------------------------------------------------


def settings_of(
    root: Path, environ: dict[str, str], files: dict[str, str | bytes | None] | None = None
) -> dict[str, str]:
    found = [c for c in checks(machine(root, files, environ)) if c.area == "settings"]
    return {c.name: f"{c.level}: {c.seen}; {c.why}" for c in found if c.level != "ok"}


def test_misspelt_and_unknown_names_are_told(tmp_path: Path) -> None:
    environ = {"NCCL_DEBG": "INFO", "NCCL_QUUX": "1", "NCCL_PASS_SM": "1", "NCCL_VERSION": "2.27.5-1", "PSM_FALTS": "x"}
    found = settings_of(tmp_path, environ)
    assert set(found) == {"NCCL_DEBG", "NCCL_QUUX", "PSM_FALTS"}
    assert found["NCCL_DEBG"].startswith("warning") and "did you mean NCCL_DEBUG?" in found["NCCL_DEBG"]
    assert found["NCCL_QUUX"].startswith("note") and "a plugin, a fork or a newer release may" in found["NCCL_QUUX"]
    assert "did you mean PSM_FAULTS?" in found["PSM_FALTS"]


@pytest.mark.parametrize(
    ("environ", "name", "words"),
    [
        ({"NCCL_DEBUG": "DEBUG"}, "NCCL_DEBUG", "logs nothing with this value"),
        ({"NCCL_DEBUG": "'INFO'"}, "NCCL_DEBUG", "quotes"),
        ({"NCCL_DEBUG_SUBSYS": "ALL"}, "NCCL_DEBUG_SUBSYS", "nothing while NCCL_DEBUG is not set"),
        ({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "ALL"}, "NCCL_DEBUG_SUBSYS", "warnings only"),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/tmp/log"}, "NCCL_DEBUG_FILE", "over each other"),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, "NCCL_P2P_DISABLE", "through the network only"),
        ({"NCCL_IB_DISABLE": "1", "NCCL_NET": "IB"}, "NCCL_IB_DISABLE", "no network"),
        ({"NCCL_TOPO_FILE": "/no/such.xml"}, "NCCL_TOPO_FILE", "no such file"),
    ],
)
def test_settings_without_effect_or_against_each_other_are_told(
    tmp_path: Path, environ: dict[str, str], name: str, words: str
) -> None:
    assert words in settings_of(tmp_path, environ)[name]


def test_settings_that_work_are_not_complained_about(tmp_path: Path) -> None:
    environ = {
        "NCCL_DEBUG": "info",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": "/tmp/log.%h.%p",
        "NCCL_P2P_DISABLE": "1",
    }
    assert settings_of(tmp_path, {**environ, "NCCL_IB_DISABLE": "0", "PSM_TIMEOUT": "5"}) == {}


def test_files_of_settings_are_read_as_nccl_reads_them(tmp_path: Path) -> None:
    files: dict[str, str | bytes | None] = {
        "/etc/nccl.conf": "# of the site\nNCCL_IB_TIMEOUT=20\nNCCL_DEBUG=WARN\n NCCL_ALGO=Ring\n",
        "/home/me/.nccl.conf": "NCCL_DEBUG=INFO\n",
    }
    m = machine(tmp_path, files, {"NCCL_IB_TIMEOUT": "22"})
    found = [c for c in checks(m) if c.area == "settings"]
    assert of(found, "variables").seen == "NCCL_DEBUG=INFO (/home/me/.nccl.conf), NCCL_IB_TIMEOUT=22"
    notes = [c for c in found if c.name == "/etc/nccl.conf"]
    assert "the environment wins: NCCL_IB_TIMEOUT=22" in notes[0].why and "' NCCL_ALGO'" in notes[1].seen


def test_every_variable_of_psmkit_is_known() -> None:
    known = set(variables()["psm"])
    text = ""
    for folder, suffixes in (("csrc", {".c", ".cc", ".h", ".def"}), ("psmkit", {".py"})):
        files = [p for p in (ROOT / folder).rglob("*") if p.suffix in suffixes]
        text += "\n".join(p.read_text(errors="replace") for p in files)
    read = set(re.findall(r'(?:getenv|environ\.get|environ|env\.get)[\[(]"(PSM_[A-Z0-9_]+)"', text))
    assert len(read) > 30 and read <= known
    assert [name for name in known if f'"{name}"' not in text] == []


# ---- this machine --------------------------------------------------------------------------------------------------


def test_this_machine_is_looked_at_without_an_error() -> None:
    found = checks(Machine())
    assert {c.area for c in found} == {"debugging", "memory", "GPUs", "network", "settings"}
    assert of(found, "interfaces").level != "error"
    assert all(c.seen for c in found)
