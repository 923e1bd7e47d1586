"""Every reader in Python with damaged input: what it may raise, how long it may take, how much memory it may use.

A reader is a function of bytes with some samples. :func:`attack` damages a sample: it changes bytes, inserts what parsers stumble over, and
repeats a part until the input is long, because that shows work that is not linear. :func:`limited` bounds each case.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import psmkit
from psmkit.audit.declared import marked, places
from psmkit.audit.knowledge import MARK
from psmkit.audit.sections import Sections
from psmkit.audit.symbols import audit_symbols
from psmkit.audit.types import types_of
from psmkit.lab.cuda import environment
from psmkit.logparse import discover, events, foreign
from psmkit.logparse.foreign.jsondocs import documents
from psmkit.logparse.formats import archive, binary, encoding
from psmkit.logparse.records import open_record
from psmkit.logparse.streams import Reader as Stream
from psmkit.model import Evidence, Report
from psmkit.model.errors import PsmkitError
from psmkit.model.inspection import InspectedFrame, InspectedThread, Inspection, Standing, StateObject, Value, to_json
from psmkit.names import Redactor
from psmkit.report import render
from psmkit.report.escape import markdown_text, visible
from psmkit.report.options import Options
from psmkit.report.redact import redact
from tests import ras
from tests.report import samples

__all__ = ["READERS", "Reader", "attack", "limited", "long_inputs"]

#: Processor seconds and bytes of memory that a case may take: many times what the slowest takes.
SECONDS = 20
MEMORY = 1 << 30
_SHORT, _LONG = 1 << 15, 1 << 18

_TOKENS = [
    b"9" * 5000, b"-1", b"-9", str(1 << 31).encode(), str(1 << 63).encode(), str(1 << 64).encode(), b"0x" + b"f" * 4000, b"1e999", b"NaN",
    b"\0", b"\xff", b"\x80", "²".encode(), "١".encode(), "\u202e".encode(), "\ue0000\ue001".encode(), b"\xed\xa0\x80", b"\r", b"\x0c", b"\x1b[31m",
    b"[", b"{", b'"', b"\\", b"\\\"", b"(", b" (", b")", b":", b"::", b",", b".", b"..", b"-", b"@", b"/", b"`", b"|", b" at ", b" in ", b" -- ",
    b"[],", b"[" * 200, b"{\"a\":" * 200, b"\n[", b"\n{\"", b" " * 100, b"\t", b"<1>", b"%", b"#0 ", b"Thread 1 (LWP 1):\n",
    b"null", b"true", b"-", b"Rank 0 -- [process information not found]",
]  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """A reader: ``read`` may raise nothing but :class:`PsmkitError`. ``make`` makes the sample that stands as empty bytes."""

    name: str
    read: Callable[[bytes], object]
    samples: tuple[bytes, ...]
    make: Callable[[], bytes] | None = None

    def sample(self, data: bytes) -> bytes:
        """A sample, made if it has to be."""
        return data or (self.make or record)()


# ---- the readers ----


def _parsed(kind: str) -> Callable[[bytes], object]:
    """A dump as the analysis reads it, with the rules that judge it."""

    def read(data: bytes) -> object:
        text = data.decode("utf-8", "replace")
        found = foreign.parse(text, kind, "dump_rank3.json")
        with _file(data, ".dump") as path:
            loaded = foreign.load(path, kind)
            assert (len(loaded.flights), len(loaded.ras), len(loaded.stacks)) == (
                len(found.flights), len(found.ras), len(found.stacks),
            ) or text.startswith("\ufeff")  # fmt: skip
        return found

    return read


def _analysed(data: bytes) -> object:
    with _file(data, ".log") as path:
        report = psmkit.analyze([path])
    for form in ("text", "json", "markdown"):
        assert render(report, form, Options())
    return redact(report)


def _decoded(data: bytes) -> object:
    with _file(data, ".log") as path:
        return [list(batch) for batch in events([path], chunk=1000)]


def _record(data: bytes) -> object:
    with _file(data, ".rec") as path:
        found = open_record(path)
        for number, line in enumerate(found.lines()):
            assert number <= len(data) and line.endswith(b"\n"), line
        return list(found.records())


def _inputs(data: bytes) -> object:
    archive(data), binary(data), encoding(data), foreign.sniff(data)
    total = 0
    with _file(data, "") as path:
        notes: list[str] = []
        for item in discover([path], notes):
            stream = Stream(item)
            while part := stream.read(1 << 16):
                total += len(part)
            stream.close()
    return total


def _members(data: bytes) -> object:
    """A tar archive whose headers were damaged, with the right checksums: else most damage ends the archive."""
    fixed = bytearray(data)
    for at in range(0, len(fixed) - 511, 512):
        if fixed[at + 257 : at + 262] == b"ustar":
            fixed[at + 148 : at + 156] = b" " * 8
            fixed[at + 148 : at + 156] = b"%06o\0 " % sum(fixed[at : at + 512])
    for whole in (bytes(fixed), gzip.compress(bytes(fixed), 1)):
        with suppress(PsmkitError):
            _inputs(whole)
    return fixed


def _redacted(data: bytes) -> object:
    text = data.decode("utf-8", "replace")
    redactor = Redactor()
    redactor.host("node-a")
    redactor.learn(text)
    return redactor.text(text)


def _rendered(data: bytes) -> object:
    """Log text in every place of a report where log text can stand."""
    text = data[: 1 << 16].decode("utf-8", "surrogateescape")  # as much as a scan gives of a line
    whole = samples.hung()
    finding = replace(
        whole.findings[0],
        title=text, explanation=text, next_step=text, evidence=(Evidence(text[:200], 1, text), *whole.findings[0].evidence),
    )  # fmt: skip
    report: Report = replace(whole, findings=(finding, *whole.findings[1:]), reason=text)
    for form in ("text", "markdown", "json", "sarif", "junit"):
        assert render(report, form, Options())
    assert "\n" not in visible(text) + markdown_text(text)
    return redact(report)


def _declared(data: bytes) -> object:
    """Where types are declared: psmkit's own reader of DWARF. Its process turns each exception into one line."""
    with _file(data, ".so") as path:
        try:
            with Sections(Path(path)) as sections:
                return marked(sections, MARK), places(sections, _WANTED)
        except Exception as error:
            raise PsmkitError(str(error)) from error


def _debug(data: bytes) -> object:
    """Damage within the debug information only: else most damage ends with the header of the file."""
    whole = bytearray(_debuggable())
    for name in (b".debug_info", b".debug_abbrev", b".debug_str", b".debug_line"):
        begin, size = _section(bytes(whole), name)
        part = data[begin : begin + size].ljust(size, b"\0")
        whole[begin : begin + size] = part
    return _library(bytes(whole))


def _section(data: bytes, name: bytes) -> tuple[int, int]:
    """Offset and size of a section of a sound ELF file."""
    table = int.from_bytes(data[0x28:0x30], "little")
    size, count, names = (int.from_bytes(data[at : at + 2], "little") for at in (0x3A, 0x3C, 0x3E))
    rows = [struct.unpack_from("<IIQQQQ", data, table + size * i) for i in range(count)]
    texts = rows[names][4]
    return next(row[4:6] for row in rows if data[texts + row[0] :].startswith(name + b"\0"))


_WANTED = (
    ("p2pConnectInfo", 136, frozenset({"rank", "read", "p2pBuff", "u"})),
    ("ncclP2pBuff", 80, frozenset({"directPtr", "size", "desc"})),
)


def _library(data: bytes) -> object:
    with _file(data, ".so") as path:
        with suppress(PsmkitError):
            types_of(Path(path))
        return audit_symbols([Path(path)])


@functools.cache
def _debuggable() -> bytes:
    """A library with debug information."""
    source = (
        "struct ncclP2pBuff { void *directPtr; unsigned long size; char desc[64]; };\n"
        "struct p2pConnectInfo { int rank, read; struct ncclP2pBuff p2pBuff; union { long a; struct CUevent_st *event; } u[4]; } one;\n"
        "typedef struct p2pConnectInfo psm_shareable_p2pConnectInfo;\nint use(psm_shareable_p2pConnectInfo *it) { return it->rank; }\n"
    )
    with tempfile.TemporaryDirectory(prefix="psmkit-fuzz-") as folder:
        made = Path(folder) / "lib.so"
        command = [os.environ.get("CC", "cc"), "-g", "-shared", "-fPIC", "-x", "c", "-", "-o", str(made)]
        subprocess.run(command, input=source, text=True, check=True)
        return made.read_bytes()


def _proxy_op(data: bytes) -> object:
    return foreign.parse_op(0, 1, 2, data.decode("utf-8", "replace"))


@contextmanager
def _file(data: bytes, suffix: str) -> Iterator[str]:
    with tempfile.NamedTemporaryFile(prefix="psmkit-fuzz-", suffix=suffix) as file:
        file.write(data)
        file.flush()
        yield file.name


# ---- samples, all made here ----


def tar_of(files: dict[str, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as made:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            made.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def zip_of(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as made:
        for name, data in files.items():
            made.writestr(name, data)
    return out.getvalue()


_LOG = b"""\
node-a:17:17 [0] NCCL INFO ncclCommInitRank comm 0x55d0c001a000 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x5c2b7a1e9d3f4680 - Init START
node-b:18:18 [1] NCCL INFO ncclCommInitRank comm 0x55d0c002a000 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2000 commId 0x5c2b7a1e9d3f4680 - Init START
node-a:17:17 [0] NCCL INFO ncclCommInitRank comm 0x55d0c001a000 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x5c2b7a1e9d3f4680 - Init COMPLETE
[rank1]:[E1121 12:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=1000) ran for 1001 milliseconds before timing out.
node-a:17:20 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer node-b<40001>
node-a:17:20 [0] NCCL INFO transport/net.cc:1 -> 6
"""
_FLIGHT = json.dumps(
    {
        "version": "2.5", "rank": 3, "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "pg_status": {"0": {"last_enqueued_collective": 7, "last_started_collective": 6, "last_completed_collective": 5}},
        "entries": [
            {
                "record_id": i, "process_group": ["0", "default_pg"], "collective_seq_id": i, "p2p_seq_id": 0, "is_p2p": i == 2,
                "profiling_name": "nccl:all_reduce" if i != 2 else "nccl:send 0->1", "state": "scheduled", "input_sizes": [[4, 4]],
                "output_sizes": [[4]], "input_dtypes": ["Float"], "time_created_ns": 17, "frames": [{"name": "f", "filename": "a.py", "line": 3}],
            }
            for i in range(4)
        ],
    }
).encode()  # fmt: skip
_RAS_JSON = json.dumps(
    {
        "nccl_version": "2.28.7", "timestamp": "2026-01-01", "ras": {"timeouts_count": 1}, "communicators_count": 1,
        "communicators": [
            {
                "hash": "0xabc0", "size": 3,
                "ranks": [{"rank": 0, "host": "node-a", "pid": 17, "cuda_dev": 0, "collective_counts": {"AllReduce": 7}, "status": {"init_state": 0}}],
                "missing_ranks": [{"rank": 2, "host": "node-b", "pid": 19, "status": {"considered_dead": True}}],
            }
        ],
    },
    indent=1,
).encode() + b'\n{"group": "LIFECYCLE", "event": "PEER_DEAD", "peer": {"host": "node-b", "pid": 19, "cuda_devs": [1]}}\n'  # fmt: skip
_RAS_TEXT = b"NCCL version 2.24.3 compiled with CUDA 12.8\n"
_RAS_TEXT += ras.head("    0         1         1         4         4         4   RUNNING  MISMATCH\n").encode()
_RAS_TEXT += b"""
Warnings
========

#0-0 (5c2b7a1e9d3f4680) MISMATCH
  Communicator ranks have different collective operation counts
  3 ranks have launched up to operation 7
  Rank 2 has launched up to operation 5 -- GPU 2 managed by process 19 on node node-b

#0-1 (5c2b7a1e9d3f4680) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 2
  Rank 2 -- [process information not found]
"""
_GDB = b"""\
Attaching to process 500
[New LWP 502]
Thread 2 (Thread 0x7f53817fd000 (LWP 502) "NCCL Service 0"):
#0  0x00007f539ef8699f in poll () from /lib64/libc.so.6
#1  ncclProxyService (_args=0x55d847bc00c0) at proxy.cc:1437
* 1    Thread 0x7f53 (LWP 41) "python" 0x00007f in poll () from /lib64/libc.so.6
"""
_EU = b"""\
PID 4711 - process
TID 4711:
#0  0x00007f5e31d2a9cd sched_yield - /usr/lib64/libc.so.6
#1  0x00007f5e0c3a11f2 - 1 waitWorkFifoAvailable(ncclComm*, unsigned int) - /usr/lib64/libnccl.so.2
    /src/enqueue.cc:1228:7
=== rank 3 pid 4712 host node-b ===
TID 4712:
#0  0x00007f5e31d1a9cd poll
"""
_TAGGED = b"".join(b"%d: " % (n % 2) + line + b"\n" for n, line in enumerate((_GDB + _EU).splitlines()))
_PYSPY = b"""\
Process 17: python train.py --rank 3
Python v3.11.7 (/usr/bin/python3.11)

Thread 17 (idle): "MainThread"
    wait (torch/distributed/c10d.py:4123)
    poll (libc.so.6)
    main ()
Current thread 0x00007f12 (most recent call first):
  File "train.py", line 12 in step
  File "train.py", line 99
"""
_PYSPY_JSON = json.dumps(
    [
        {
            "pid": 17 + p, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": 17 + p, "active": True, "owns_gil": False,
            "frames": [{"name": "all_reduce", "filename": "/a/b.py", "short_filename": "b.py", "line": 3, "locals": None}] * 3,
            "process_info": {"pid": 17 + p, "command_line": "python train.py --rank 3", "parent": None},
        }
        for p in range(3)
    ]
).encode()  # fmt: skip
_INSPECTIONS = json.dumps(
    [
        to_json(
            Inspection(
                17 + r, "node-a", ("python", "train.py"), 1.0 + r, rank=r, nranks=4,
                standing=(Standing("GetFd", 1, "it waits for a file descriptor of rank 1", "ncclIpcSocketRecvMsg", r),),
                threads=(
                    InspectedThread(
                        17 + r, "python", "main thread", "fd", "waits for a file descriptor", "S",
                        frames=(InspectedFrame("poll", "libc.so.6"), InspectedFrame("ncclIpcSocketRecvMsg")),
                        python=(InspectedFrame("all_reduce", "b.py:1"),),
                    ),
                ),
                state=(
                    StateObject("communicator", "comm 0x1", 1, r, values=(Value("opCount", 7),), parts=(
                        StateObject("pending call", "GetFd", 2, r, 1, values=(Value("opId", "0x7f"), Value("type", "GetFd"))),
                        StateObject("connection", "send", 3, r, 1, 0, (Value("head", 4, True, 3),)),
                    )),
                ),
            )
        )
        for r in range(4)
    ]
).encode()  # fmt: skip
_OPS = (
    b"AllReduce->Send 1S/0 2R/1 3D/12]",
    b"Coll->Recv (1048576)[R] peer:0 channel:0(retries:6)",
    b"Reduce | recv channel NET/00: 0 <- 2 / status R (nsteps 6144, posted 677, received 669)",
)
_FILES = {"run/rank0.log": _LOG, "b" * 120 + "/rank1.log.gz": gzip.compress(_LOG), "core": b"\x7fELF" + bytes(60)}
_NAMES = (
    b"node-a:17:18 [0] NCCL INFO user=alice /home/alice/x.log alice@node-b.example.com 10.0.0.1 fe80::1%eth0 "
    b"aa:bb:cc:dd:ee:ff node-a<5000> process 12345 thread[678] node-c.svc.cluster.local:1234"
)

READERS = (
    Reader("flight recorder", _parsed("flight-recorder"), (_FLIGHT, b"[" + _FLIGHT + b"]")),
    Reader("ras json", _parsed("ras-json"), (_RAS_JSON,)),
    Reader("ras text", _parsed("ras-text"), (_RAS_TEXT, _RAS_TEXT + _RAS_TEXT)),
    Reader("gdb", _parsed("gdb"), (_GDB, _EU, _TAGGED)),
    Reader("py-spy", _parsed("py-spy"), (_PYSPY, _TAGGED)),
    Reader("py-spy json", _parsed("py-spy-json"), (_PYSPY_JSON,)),
    Reader("inspection", _parsed("inspection"), (_INSPECTIONS, _INSPECTIONS[1:-1].replace(b"}, {\"schema", b"}\n{\"schema"))),
    Reader("proxy dump", _proxy_op, _OPS),
    Reader("json documents", lambda data: documents(data.decode("utf-8", "replace")), (_FLIGHT, _RAS_JSON, b'[1, "a\\"b", {}]\n[2]')),
    Reader("redact", _redacted, (_NAMES, _LOG)),
    Reader("report", _rendered, (_NAMES, _LOG, samples.NASTY.encode("utf-8", "replace"))),
    Reader("archive", _inputs, (tar_of(_FILES, tarfile.PAX_FORMAT), tar_of(_FILES), gzip.compress(tar_of(_FILES)), zip_of(_FILES))),
    Reader("members", _members, (tar_of(_FILES, tarfile.PAX_FORMAT), tar_of(_FILES))),
    Reader("input", _inputs, (_LOG, _LOG.decode().encode("utf-16"), gzip.compress(_LOG))),
    Reader("events", _decoded, (_LOG,)),
    Reader("analysis", _analysed, (_LOG, _RAS_TEXT, _RAS_JSON, _FLIGHT, _GDB, _EU, _PYSPY, _INSPECTIONS, _LOG + _RAS_TEXT)),
    Reader("record", _record, (b"",)),
    Reader("declarations", _declared, (b"",), _debuggable),
    Reader("library", _library, (b"",), _debuggable),
    Reader("debug information", _debug, (b"",), _debuggable),
)  # fmt: skip


@functools.cache
def record() -> bytes:
    """The record of a process that used emulated CUDA and did not close it."""
    code = "import ctypes, os; c = ctypes.CDLL('libcudart.so.13'); c.cudaFree(0); c.cudaMalloc(ctypes.byref(ctypes.c_void_p()), 64); os._exit(0)"
    with tempfile.TemporaryDirectory(prefix="psmkit-fuzz-") as folder:
        settings = {"PSM_RECORD_DIR": folder, "PSM_RECORD_MAX": "256k", "PSM_HOSTCUDA_BANNER": "0"}
        subprocess.run([sys.executable, "-c", code], env=environment({**os.environ, **settings}), check=True)
        return max((path.read_bytes() for path in Path(folder).iterdir()), key=len)


# ---- damage ----


def attack(reader: Reader, rng: random.Random) -> bytes:
    """A damaged sample of ``reader``."""
    data = bytearray(reader.sample(rng.choice(reader.samples)))
    for _ in range(rng.choice((1, 1, 2, 3, 5, 9))):
        at = rng.randrange(min(len(data), rng.choice((1 << 12, len(data)))) + 1)  # headers matter most
        size = min(rng.choice((1, 1, 2, 4, 8, 30, 200)), len(data) - at)
        match rng.randrange(7):
            case 0:
                data[at : at + size] = rng.randbytes(size)
            case 1:
                del data[at : at + size]
            case 2 | 3:
                data[at:at] = rng.choice(_TOKENS)
            case 4:
                data[at : at + size] = rng.choice(_TOKENS)
            case 5:  # repeat a part: work that grows with the square of its length shows
                length = rng.choice((256, 4096, _SHORT, _LONG) if rng.random() < 0.2 else (256, 4096, _SHORT))
                part = bytes(data[at : at + size]) if rng.random() < 0.6 else rng.choice(_TOKENS)
                data[at:at] = part * (length // max(len(part), 1))
            case _:
                del data[at : at + 1 if rng.random() < 0.7 else None]
    return bytes(data[: 2 * _LONG])


def long_inputs(reader: Reader) -> Iterator[bytes]:
    """Long inputs that are known to be hard: each token alone, over and over, within a sample."""
    head = reader.sample(reader.samples[0])
    for token in _TOKENS:
        yield head[: len(head) // 2] + token * (_LONG // 4 // len(token)) + head[len(head) // 2 :]


class TooSlowError(AssertionError):
    """A case took more processor time than :data:`SECONDS`."""


@contextmanager
def limited(memory: bool = True, seconds: float = SECONDS) -> Iterator[None]:
    """Bound what the block takes: processor time, and memory beyond what the process has unless it runs under a sanitizer."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TooSlowError(f"more than {seconds} s of processor time")

    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    handler = signal.signal(signal.SIGPROF, stop)
    if memory and "libasan" not in os.environ.get("LD_PRELOAD", ""):
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        with suppress(PsmkitError):
            yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)
