"""What may not be traced is refused by one line, with the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from psmkit.live import tracing
from tests.live.processes import process

STRANGER = 4_294_000


class Proc:
    """A made-up /proc in which this process has no capability."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.add(os.getpid(), CapEff="0000000000000000", Name="psmkit")

    def become(self, *, root: bool, capable: bool) -> None:
        """Change the rights of this process."""
        uid = "\t".join(["0" if root else "1000"] * 4)
        rights = f"CapEff:\t{(1 << 19) if capable else 0:016x}\nUid:\t{uid}\n"
        (self.root / str(os.getpid()) / "status").write_text(rights)

    def add(self, pid: int, *, flags: int = 0, exe: bytes | None = None, maps: str | None = "", **status: str) -> None:
        folder = self.root / str(pid)
        folder.mkdir()
        own = {"Name": "a", "State": "S (sleeping)", "Tgid": str(pid), "TracerPid": "0", "NSpid": str(pid)}
        own["Uid"] = "\t".join([str(os.getuid())] * 4)
        (folder / "status").write_text("".join(f"{key}:\t{value}\n" for key, value in (own | status).items()))
        (folder / "stat").write_text(f"{pid} (a) S 1 1 1 0 -1 {flags} 0 0\n")
        if exe is not None:
            (folder / "exe").write_bytes(exe)
        if maps is not None:
            (folder / "maps").write_text(maps)

    def refusal(self, pid: int) -> str:
        with pytest.raises(tracing.Refused) as caught:
            tracing.check(pid, self.root)
        text = str(caught.value)
        assert "\n" not in text and caught.value.remedy in text
        return text


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_process_of_this_user_may_be_traced(proc: Proc) -> None:
    proc.add(7)
    tracing.check(7, proc.root)


def test_dead_process_is_refused(proc: Proc) -> None:
    assert "process 7: there is no such process" in proc.refusal(7)


def test_number_of_a_container_is_translated(proc: Proc) -> None:
    proc.add(900, NSpid="900\t7")
    text = proc.refusal(7)
    assert "its number in a container; here it is 900" in text and "psmkit inspect 900" in text


def test_zombie_is_refused(proc: Proc) -> None:
    proc.add(7, State="Z (zombie)")
    assert "has ended" in proc.refusal(7)


def test_thread_names_its_process(proc: Proc) -> None:
    proc.add(8, Tgid="7")
    assert "a thread of process 7: psmkit inspect 7" in proc.refusal(8)


def test_kernel_thread_is_refused(proc: Proc) -> None:
    proc.add(7, flags=0x00200040)
    assert "a thread of the kernel" in proc.refusal(7)


def test_process_of_another_user_is_refused(proc: Proc) -> None:
    proc.become(root=False, capable=False)
    proc.add(7, Uid="\t".join([str(STRANGER)] * 4))
    text = proc.refusal(7)
    assert f"belongs to user {STRANGER}" in text and "sudo" in text


def test_32_bit_program_is_refused(proc: Proc) -> None:
    proc.add(7, exe=b"\x7fELF\x01\x01\x01" + bytes(60))
    assert "32-bit" in proc.refusal(7)


def test_traced_process_names_its_tracer(proc: Proc) -> None:
    proc.add(50, Name="strace")
    proc.add(7, TracerPid="50")
    text = proc.refusal(7)
    assert "strace (50) traces it" in text and "end strace first" in text


@pytest.mark.parametrize(("scope", "says"), [(2, "only CAP_SYS_PTRACE"), (3, "nobody")])
def test_yama_is_refused_with_its_scope(proc: Proc, scope: int, says: str) -> None:
    proc.add(7)
    setting = proc.root / "sys/kernel/yama/ptrace_scope"
    setting.parent.mkdir(parents=True)
    setting.write_text(f"{scope}\n")
    text = proc.refusal(7)
    assert f"ptrace_scope is {scope}" in text and says in text


@pytest.mark.parametrize(
    ("root", "capable", "says"),
    [
        (
            True,
            True,
            "although psmkit has CAP_SYS_PTRACE: perhaps it is of another user namespace, or a security module",
        ),
        (True, False, "as root lacks CAP_SYS_PTRACE here: start the container with --cap-add=SYS_PTRACE"),
        (False, False, "run psmkit by sudo"),
    ],
)
def test_remedy_of_a_denial_helps_whoever_is_denied(
    proc: Proc, monkeypatch: pytest.MonkeyPatch, root: bool, capable: bool, says: str
) -> None:
    """For root sudo changes nothing."""
    proc.add(7)
    proc.become(root=root, capable=capable)
    read = Path.read_bytes

    def denied(path: Path) -> bytes:
        if path == proc.root / "7/maps":
            raise PermissionError
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", denied)
    text = proc.refusal(7)
    assert says in text and (not root or "sudo" not in text)
    assert tracing.remedy_of_denial(proc.root) in text


def test_root_without_the_capability_is_not_sent_to_sudo(proc: Proc) -> None:
    proc.become(root=True, capable=False)
    proc.add(7, Uid="\t".join([str(STRANGER)] * 4))
    text = proc.refusal(7)
    assert "sudo" not in text and "--cap-add=SYS_PTRACE, which root lacks here" in text


def test_yama_of_scope_0_allows(proc: Proc) -> None:
    proc.add(7)
    setting = proc.root / "sys/kernel/yama/ptrace_scope"
    setting.parent.mkdir(parents=True)
    setting.write_text("0\n")
    tracing.check(7, proc.root)


def test_real_dead_process_and_real_tracer() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    with pytest.raises(tracing.Refused):
        tracing.check(child.pid)
    with process("input(print('up', flush=True) or '')") as living:
        tracing.check(living.pid)
        assert tracing.tracer_of(living.pid) == 0
