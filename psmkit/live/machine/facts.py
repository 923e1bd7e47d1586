"""Reads the machine. A root other than ``/`` stands for another machine: only its files are asked then, not the running kernel."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from psmkit.live import procfs
from psmkit.live.holders import blind

__all__ = ["Interface", "Machine", "Mount", "Space"]

_PATIENCE = 10.0  # seconds for a program to say its version
_SEIZE = 0x4206  # a request of ptrace(2)
_FLAGS, _ADDRESS = 0x8913, 0x8915  # SIOCGIFFLAGS, SIOCGIFADDR
_RUNNING = 0x40
_SYS_PTRACE = 19


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface: whether it runs, and its addresses."""

    name: str
    running: bool
    ipv4: str = ""
    ipv6: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system."""

    source: str
    kind: str
    options: str


@dataclass(frozen=True, slots=True)
class Space:
    """Room in a file system: bytes and inodes. ``None``: unknown; 0 inodes: they are not limited."""

    size: int
    free: int | None
    inodes: int = 0
    free_inodes: int = 0


class Machine:
    """A machine, or a folder that stands for one.

    Args:
        root: where its /proc, /sys, /dev and /etc are.
        environ: its environment variables.
        packages: folders of Python packages.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        environ: Mapping[str, str] | None = None,
        packages: Sequence[Path] | None = None,
    ) -> None:
        self.root = root
        self.environ: Mapping[str, str] = os.environ if environ is None else environ
        self.packages = [Path(p) for p in sys.path if p] if packages is None else list(packages)

    @property
    def here(self) -> bool:
        """Whether this is the machine that we run on."""
        return self.root == Path("/")

    # ---- files ---------------------------------------------------------------------------------------------------------

    def path(self, name: str) -> Path:
        """Where a file of the machine is."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str:
        """The text of a file without white space at its ends; empty: it is absent or cannot be read."""
        try:
            return self.path(name).read_text(errors="surrogateescape").strip()
        except (OSError, ValueError):
            return ""

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; none: it is absent or cannot be read."""
        try:
            return sorted(os.listdir(self.path(folder)))
        except OSError:
            return []

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return os.path.lexists(self.path(name))

    def opens(self, name: str) -> bool:
        """Whether we may read and write a file."""
        return os.access(self.path(name), os.R_OK | os.W_OK)

    def real(self, name: str) -> str:
        """The name of a file without symbolic links; one that leads out of the root is not followed."""
        path = self.path(name)
        for _ in range(40):
            if not os.path.islink(path):
                break
            target = os.readlink(path)
            path = self.path(target) if target.startswith("/") else Path(os.path.normpath(path.parent / target))
        try:
            return "/" + str(path.relative_to(self.root))
        except ValueError:
            return name

    # ---- this process --------------------------------------------------------------------------------------------------

    @functools.cached_property
    def status(self) -> Mapping[str, str]:
        """/proc/self/status."""
        return procfs.status_of("self", str(self.path("/proc")))

    @property
    def may_trace(self) -> bool:
        """Whether this process has the capability CAP_SYS_PTRACE."""
        try:
            return bool(int(self.status.get("CapEff", "0"), 16) >> _SYS_PTRACE & 1)
        except ValueError:
            return False

    @property
    def is_root(self) -> bool:
        """Whether this process runs as root."""
        return self.status.get("Uid", "").split()[1:2] == ["0"]

    @functools.cached_property
    def container(self) -> str:
        """What shows that this is a container; empty: nothing does."""
        for name, what in (("/.dockerenv", "/.dockerenv exists"), ("/run/.containerenv", "/run/.containerenv exists")):
            if self.exists(name):
                return what
        if "KUBERNETES_SERVICE_HOST" in self.environ:
            return "KUBERNETES_SERVICE_HOST is set"
        if m := re.search(r"docker|kubepods|containerd|libpod|lxc|apptainer", self.read("/proc/1/cgroup")):
            return f"/proc/1/cgroup names {m[0]}"
        for name in ("SINGULARITY_CONTAINER", "APPTAINER_CONTAINER", "ENROOT_ROOTFS"):
            if name in self.environ:
                return f"{name} is set"
        return "the pid namespace is not the machine's" if self.sees_less else ""

    @property
    def sees_less(self) -> bool:
        """Whether this is another pid namespace than that of the machine: processes outside of it are not visible."""
        return "of this container" in blind(str(self.path("/proc")))

    def limits(self) -> dict[str, tuple[int | None, int | None]]:
        """The soft and the hard limit by name, ``Max locked memory``; None: unlimited."""
        found = {}
        for line in self.read("/proc/self/limits").splitlines():
            if m := re.match(r"(.+?) {2,}(\d+|unlimited) +(\d+|unlimited)", line):
                soft, hard = (None if value == "unlimited" else int(value) for value in (m[2], m[3]))
                found[m[1]] = soft, hard
        return found

    def mount(self, folder: str) -> Mount | None:
        """What is mounted at a folder."""
        found = None
        for line in self.read("/proc/self/mounts").splitlines():
            words = line.split()
            if len(words) > 3 and words[1] == folder:
                found = Mount(words[0], words[2], words[3])
        return found

    # ---- the running kernel, or what stands for it ---------------------------------------------------------------------

    def space(self, folder: str) -> Space | None:
        """The room in the file system of a folder."""
        if self.here:
            try:
                st = os.statvfs(folder)
            except OSError:
                return None
            return Space(st.f_blocks * st.f_frsize, st.f_bavail * st.f_frsize, st.f_files, st.f_favail)
        mount = self.mount(folder)
        size = re.search(r"(?:^|,)size=(\d+)([kmg]?)", mount.options) if mount else None
        scale = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
        return Space(int(size[1]) * scale[size[2]], None) if size else None

    def interfaces(self) -> list[Interface]:
        """The network interfaces, in the order of the kernel."""
        six: dict[str, list[str]] = {}
        for line in self.read("/proc/net/if_inet6").splitlines():
            words = line.split()
            if len(words) == 6:
                address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))
                six.setdefault(words[5], []).append(address)
        if not self.here:
            return []
        found = []
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as s:
            for _, name in sorted(socket.if_nameindex()):
                flags, own = _asked(s, _FLAGS, name), _asked(s, _ADDRESS, name)
                running = bool(flags and struct.unpack_from("=H", flags, 16)[0] & _RUNNING)
                four = socket.inet_ntoa(own[20:24]) if own else ""
                found.append(Interface(name, running, four, tuple(six.get(name, ()))))
        return found

    def program(self, name: str) -> str:
        """The path of a program; empty: there is none."""
        if self.here:
            return shutil.which(name, path=self.environ.get("PATH")) or ""
        places = (f"{folder}/{name}" for folder in self.environ.get("PATH", "/usr/bin").split(":"))
        return next((place for place in places if self.exists(place)), "")

    def says(self, *command: str) -> str:
        """The first line that a program prints; empty: it cannot be run."""
        if not self.here:
            return ""
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, errors="replace"
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return next((line.strip() for line in done.stdout.splitlines() if line.strip()), "")

    def package(self, name: str) -> str:
        """The version of a Python package; empty: it is not installed."""
        form = re.compile(rf"{name.replace('-', '[-_]')}-([^-]+)\.dist-info", re.IGNORECASE)
        for folder in self.packages:
            try:
                names = os.listdir(folder)
            except OSError:
                continue
            if found := next((m[1] for m in map(form.fullmatch, names) if m), ""):
                return found
        return ""

    def tracing(self) -> str | None:
        """Why this process may not trace one that it started; empty: it may; None: that was not tried."""
        return _try_tracing() if self.here else None

    def synchronised(self) -> bool | None:
        """Whether the kernel says that something keeps the clock right; None: unknown."""
        if not self.here:
            return None
        timex = ctypes.create_string_buffer(512)  # zeros: nothing is set
        state = ctypes.CDLL(None).adjtimex(timex)
        return None if state < 0 else state != 5  # TIME_ERROR


def _asked(s: socket.socket, request: int, name: str) -> bytes:
    try:
        return fcntl.ioctl(s, request, struct.pack("256s", os.fsencode(name)[:15]))
    except OSError:
        return b""


def _try_tracing() -> str | None:
    """Seize a child, as a debugger does, and end it."""
    try:
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    except OSError:
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(ctypes.c_long(_SEIZE), ctypes.c_long(child.pid), None, None) == 0:
            return ""
        number = ctypes.get_errno()
        return os.strerror(number) if number in (errno.EPERM, errno.EACCES, errno.ENOSYS) else None
    finally:
        child.kill()
        child.communicate()
