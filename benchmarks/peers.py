"""Measure transport and plugins beside their peers in the same run: one table with each goal, ours, the peer and their ratio.

    python benchmarks/peers.py [--rounds N] [--seconds N] [--library FOLDER] [--output benchmarks/peers.md]

All programs take turns, round by round, and the ratio of a row is the median of those of the rounds, so that other work on the machine affects both sides.
The programs are those of fifo.py, proxy.py, net.py and profiler.py, which measure more of each. Of a round counts the lower quartile of its turns. A figure is
the median of the rounds, and the best turn beside it; for the profiler the best counts.

Peers that are not installed are named below the table. Debian has them: openmpi-bin libopenmpi-dev ucx-utils iceoryx libiceoryx-binding-c-dev lttng-tools
liblttng-ust-dev. PyPI has iceoryx2, by its Python binding only: pip install iceoryx2.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]

import fifo  # noqa: E402
import net  # noqa: E402
import profiler  # noqa: E402
import proxy  # noqa: E402

from benchmarks.machine import clean, compiled, load, processor  # noqa: E402
from psmkit.cli.config import tree  # noqa: E402

MIB = 1 << 20
LARGE = 4 * MIB
LIMIT = 60.0  # seconds for a program
SHARED = Path("/dev/shm")
ICEORYX = Path("/usr/include/iceoryx")
Turns = dict[str, list[float]]  # nanoseconds of a round's turns, by name


# ---- programs: each adds the turns of a round ----


def run(command: Sequence[object], env: Mapping[str, str] | None = None) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def in_ns(found: Mapping[str, Sequence[float]], suffix: str = "") -> Turns:
    return {f"{name}{suffix}": [1e9 * seconds for seconds in turns] for name, turns in found.items()}


def lines_of(text: str, names: Sequence[str]) -> dict[str, list[float]]:
    """NAME NUMBER of a program whose libraries print other lines, too."""
    found: dict[str, list[float]] = defaultdict(list)
    for words in map(str.split, text.splitlines()):
        if len(words) == 2 and words[0] in names:
            found[words[0]].append(float(words[1]))
    return found


@contextlib.contextmanager
def daemon(command: Sequence[object], ready: str) -> Iterator[None]:
    """A daemon of a peer, while its clients are measured. `ready`: what it prints when they may come; empty: at once."""
    with subprocess.Popen([str(w) for w in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as d:
        try:
            assert d.stdout
            while ready and (line := d.stdout.readline()) and ready not in line:
                pass
            yield
        finally:
            d.send_signal(signal.SIGTERM)
            try:
                d.wait(timeout=10)
            except subprocess.TimeoutExpired:
                d.kill()


class Programs:
    """What is measured here, and why some peers are not."""

    def __init__(self, place: Path, target: Path) -> None:
        self.target = target
        self.bench = fifo.Bench(place, target)
        self.missing = list(self.bench.missing)
        self.net_program = net.build(place, target)
        self.proxy_program = compiled("proxy", place, target, "-lpthread")
        self.profiler_program = profiler.compiled(target)
        self.net_library = place / "lib" / "libnccl-net-psm.so"
        self.profiler_library = place / "lib" / "libnccl-profiler-psm.so"
        records = {"PSM_RECORD_DIR": str(target / "records"), "NCCL_SOCKET_IFNAME": "=lo"}
        self.net_env = clean() | records
        self.iceoryx = self.build_peer("iceoryx", "iceoryx, libiceoryx-binding-c-dev", "iox-roudi", "iceoryx_binding_c")
        self.lttng = self.build_peer("lttng", "lttng-tools, liblttng-ust-dev", "lttng-sessiond", "lttng-ust")
        self.iceoryx2 = importlib.util.find_spec("iceoryx2") is not None
        if not self.iceoryx2:
            self.missing.append("iceoryx2 (pip install iceoryx2)")

    def build_peer(self, name: str, packages: str, daemon_name: str, library: str) -> Path | None:
        """The program peers_NAME.c; None where the packages are not installed."""
        made = self.target / f"peers_{name}"
        folders = [f"-I{HERE}", *(f"-I{folder}" for folder in ICEORYX.glob("v*"))]
        command = [os.environ.get("CC", "cc"), "-O2", "-std=gnu11", *folders, str(HERE / f"peers_{name}.c"), "-o"]
        there = shutil.which(daemon_name) and subprocess.run(
            [*command, str(made), f"-l{library}", "-ldl"], capture_output=True, check=False
        )
        if there and there.returncode == 0:
            return made
        self.missing.append(f"{name} (Debian's {packages})")
        return None

    # each returns the turns of a round

    def small(self) -> Turns:
        return in_ns(self.bench.fifo("small", 30))

    def small_peers(self) -> Turns:
        return in_ns(self.bench.peers(fifo.SMALL_BYTES, 10, 500))

    def small_iceoryx(self) -> Turns:
        if not self.iceoryx:
            return {}
        with daemon(["iox-roudi", "--log-level", "warning"], "RouDi is ready"):
            return in_ns(lines_of(run([self.iceoryx, 10, 500]), ["iceoryx"]))

    def small_iceoryx2(self) -> Turns:
        if not self.iceoryx2:
            return {}
        text = run([sys.executable, HERE / "peers_iceoryx2.py", 5, 200])
        return in_ns(lines_of(text, ["iceoryx2", "iceoryx2-calls"]))

    def large(self) -> Turns:
        return in_ns(self.bench.fifo("bandwidth", LARGE, 10), "-4M")

    def large_peers(self) -> Turns:
        return in_ns(self.bench.peers(LARGE, 10, 1), "-4M")

    def hostcuda(self) -> Turns:
        return in_ns(self.bench.p2p("small", 30))

    def calls(self) -> Turns:
        found = proxy.measure(self.proxy_program, 1, 5000, sleeping=False)
        return {name: turns for name, turns in found.items() if name.endswith("polling")}

    def net_way(self, way: net.Way, size: int, turns: int) -> list[float]:
        way.turns.clear()
        net.measure([way], size, 1, self.net_env, turns)
        return list(way.turns)

    def net_small(self) -> Turns:
        way = net.Way("", [str(self.net_program), str(self.net_library), "plugin-pingpong"], {"PSM_NET": "shm"})
        return {"net-shm": self.net_way(way, fifo.SMALL_BYTES, 30)}

    def net_stream(self) -> Turns:
        plugin = net.Way("", [str(self.net_program), str(self.net_library), "plugin-stream"])
        found = {"net-socket": self.net_way(plugin, MIB, 12)}
        for way in net.tcp_ways(self.net_program, "stream"):
            found[way.text] = self.net_way(way, MIB, 12)
        return found

    def profilers(self) -> Turns:
        found: Turns = {}
        for case in ("group", "coll", "step", "clock"):
            got = profiler.measure(self.profiler_program, self.profiler_library, case, 1, 2000, 30, {})
            if not got or got["null_handles"]:
                raise SystemExit(f"the profiler lost events of {case}")
            found[case if case == "clock" else f"profiler-{case}"] = [float(got["ns"])]
        if self.lttng:
            found |= {f"lttng-{name}": turns for name, turns in self.lttng_turns().items()}
        return found

    def lttng_turns(self) -> Turns:
        assert self.lttng
        env = {**os.environ, "LTTNG_HOME": str(self.target)}
        session = f"psm-bench-{os.getpid()}"
        lttng = ["lttng", "--no-sessiond", "--quiet"]
        run([*lttng, "create", session, f"--output={self.target / 'traces'}"], env)
        channel = ["--userspace", f"--session={session}"]
        ring = ["--overwrite", "--subbuf-size=1M", "--num-subbuf=4", "ring"]
        try:
            run([*lttng, "enable-channel", *channel, *ring], env)
            run([*lttng, "enable-event", *channel, "--channel=ring", "psm_bench:*"], env)
            run([*lttng, "start", session], env)
            return lines_of(run([self.lttng, 2000, 30], env), ["group", "coll", "step"])
        finally:
            run([*lttng, "destroy", "--no-wait", session], env)
            shutil.rmtree(self.target / "traces", ignore_errors=True)

    def all(self) -> list[Callable[[], Turns]]:
        return [
            *(self.small, self.small_peers, self.small_iceoryx, self.small_iceoryx2, self.large, self.large_peers),
            *(self.hostcuda, self.calls, self.net_small, self.net_stream, self.profilers),
        ]


# ---- rounds ----


def typical(turns: Sequence[float]) -> float:
    """The lower quartile of a round: other work on the machine delays many turns, and the best one may owe much to chance."""
    return sorted(turns)[len(turns) // 4]


class Rounds:
    """Turns by name and round."""

    def __init__(self) -> None:
        self.of: dict[str, list[list[float]]] = defaultdict(list)

    def add(self, turns: Turns) -> None:
        for name, found in turns.items():
            self.of[name].append(found)

    def middle(self, name: str) -> float:
        return statistics.median(map(typical, self.of[name]))

    def best(self, name: str) -> float:
        return min(min(turns) for turns in self.of[name])

    def ratio(self, ours: str, peer: str) -> float:
        """How much longer ours takes, the median of the rounds."""
        both = zip(self.of[ours], self.of[peer], strict=True)
        return statistics.median(typical(a) / typical(b) for a, b in both)


def measure(programs: Programs, rounds: int, seconds: float) -> Rounds:
    """All programs in turn; no further round if it would end after `seconds`."""
    found, begin = Rounds(), time.monotonic()
    with contextlib.ExitStack() as stack:
        if programs.lttng:
            os.environ["LTTNG_HOME"] = str(programs.target)
            stack.enter_context(daemon(["lttng-sessiond", "--no-kernel"], ""))
            time.sleep(1)  # it says nothing when it is ready
        for n in range(rounds):
            for program in programs.all():
                found.add(program())
            took = time.monotonic() - begin
            print(f"round {n + 1} of {rounds}, {took:.0f} s, load {load()}", file=sys.stderr, flush=True)
            if took * (n + 2) / (n + 1) > seconds:
                break
    return found


# ---- the table ----


@dataclass(frozen=True)
class Row:
    """A figure of ours beside one of a peer. `most`: of the ratio of times; `ns`: of our time; None: no goal."""

    what: str
    ours: str
    text: str
    peer: str
    most: float | None = None
    ns: float | None = None
    size: int = 0  # of a rate; 0: a time
    least: bool = False  # the best turn counts


FIFO, PAIR = "FIFO, 8 B one way", "profiler, start and stop of a "


def rows_of(found: Rounds) -> list[Row]:
    large, tcp = "FIFO, 4 MiB, 8 slots of ", [name for name in found.of if name.startswith("TCP")]
    best = min(tcp, key=found.middle)
    stream = "net plugin, socket, 1 MiB, 4 in flight"
    rows = [
        Row(FIFO, "fifo", "bare word on a cache line", "bare", most=1.1),
        Row(FIFO, "fifo", "OpenMPI, shared memory", "mpi"),
        Row(FIFO, "fifo", "UCX posix, tag_lat", "ucx"),
        Row(FIFO, "fifo", "iceoryx, C binding", "iceoryx"),
        Row(FIFO, "fifo", "iceoryx2, Python binding (1)", "iceoryx2"),
        Row(
            f"{large}256 KiB", "fifo-4M", "bare FIFO of the same size in a memfd", "bare-fifo-4M", most=1.0, size=LARGE
        ),
        Row(f"{large}128 KiB", "fifo-128-4M", "the same of 128 KiB", "bare-fifo-128-4M", most=1.0, size=LARGE),
        Row(f"{large}256 KiB", "fifo-4M", "memcpy in one process", "memcpy-4M", size=LARGE),
        Row(f"{large}256 KiB", "fifo-4M", "process_vm_readv", "process_vm_readv-4M", size=LARGE),
        Row(f"{large}256 KiB", "fifo-4M", "OpenMPI, shared memory", "mpi-4M", size=LARGE),
        Row(f"{large}256 KiB", "fifo-4M", "UCX posix, tag_lat", "ucx-4M", size=LARGE),
        Row("p2p over hostcuda, 8 B one way", "p2p-step", "one copy of hostcuda with its event", "copy-event", ns=500),
        Row("proxy, polling call", "call_polling", "bare round trip on a socket", "bare_polling", most=1.1),
        Row("net plugin, shm, 8 B one way", "net-shm", "FIFO of libpsm", "fifo", most=1.2),
        Row(stream, "net-socket", f"best TCP: {best.removeprefix('TCP, ')}", best, most=1.0, size=MIB),
        *(Row(stream, "net-socket", name, name, size=MIB) for name in sorted(tcp) if name != best),
    ]
    for case, text, most in (("group", "group", 40), ("coll", "collective", 50), ("step", "proxy step", 45)):
        peer = f"two tracepoints of LTTng-UST, {case}"
        rows.append(Row(PAIR + text, f"profiler-{case}", peer, f"lttng-{case}", ns=most, least=True))
    return [row for row in rows if row.ours in found.of]


def shown(ns: float, size: int) -> str:
    return f"{size / ns:.1f} GB/s" if size else f"{ns:.0f} ns" if ns < 10000 else f"{ns / 1000:.1f} us"


def goal_of(row: Row, found: Rounds) -> tuple[str, str]:
    """The goal, and whether it is met."""
    if row.ns is not None:
        seen = found.best(row.ours) if row.least else found.middle(row.ours)
        return f"<= {row.ns:.0f} ns", "yes" if seen <= row.ns else f"{seen - row.ns:.0f} ns more"
    if row.most is None or row.peer not in found.of:
        return "", ""
    met = "yes" if found.ratio(row.ours, row.peer) <= row.most + 0.005 else "no"
    return (f">= {1 / row.most:.1f} x" if row.size else f"<= {row.most:.1f} x"), met


def table(found: Rounds) -> list[str]:
    lines = [
        "| what | goal | ours | best | peer | its figure | best | ratio | of the best | met |",
        "|---|---|---:|---:|---|---:|---:|---:|---:|---|",
    ]
    for row in rows_of(found):
        if row.peer not in found.of and row.most is None and row.ns is None:
            continue
        cells = [row.what, goal_of(row, found)[0], shown(found.middle(row.ours), row.size)]
        cells += [shown(found.best(row.ours), row.size), row.text]
        if row.peer in found.of:
            ratios = (found.ratio(row.ours, row.peer), found.best(row.ours) / found.best(row.peer))
            cells += [shown(found.middle(row.peer), row.size), shown(found.best(row.peer), row.size)]
            cells += [f"{1 / ratio if row.size else ratio:.2f}" for ratio in ratios]
        else:
            cells += ["not measured", "", "", ""]
        lines.append("| " + " | ".join([*cells, goal_of(row, found)[1]]) + " |")
    return lines


def version(package: str) -> str:
    done = subprocess.run(
        ["dpkg-query", "-W", "-f=${Version}", package], capture_output=True, text=True, check=False
    ) if shutil.which("dpkg-query") else None  # fmt: skip
    return f"{package} {done.stdout}" if done and done.returncode == 0 and done.stdout else ""


def notes(programs: Programs, found: Rounds) -> list[str]:
    lines = []
    if "iceoryx2-calls" in found.of:
        calls = found.best("iceoryx2-calls")
        lines.append(
            f"(1) iceoryx2 {importlib.metadata.version('iceoryx2')}: a message includes the Python calls that send and poll. Alone, without a message on its "
            f"way, one of each takes {shown(calls, 0)}, so the row is an upper bound, and not the time of its transport."
        )
    names = ("openmpi-bin", "ucx-utils", "iceoryx", "liblttng-ust1")
    known = [text for text in map(version, names) if text]
    lines += ["Of Debian: " + ", ".join(known) + "."] if known else []
    lines += [f"Not measured: {peer}." for peer in programs.missing]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=400, help="no round begins that would end later (400)")
    parser.add_argument("--library", type=Path, default=None, help="folder with lib and include of libpsm")
    parser.add_argument("--output", type=Path, default=None, help="write the table there, too")
    options = parser.parse_args()
    before, there = load(), set(os.listdir(SHARED)) if SHARED.is_dir() else set()
    with tempfile.TemporaryDirectory(prefix="psmkit-bench-") as name:
        programs = Programs((options.library or tree()).resolve(), Path(name))
        try:
            found = measure(programs, options.rounds, options.seconds)
        finally:
            for left in set(os.listdir(SHARED)) - there if SHARED.is_dir() else ():
                if left.startswith(("iox2_", "iceoryx", "lttng-ust")):  # what the peers leave there
                    (SHARED / left).unlink(missing_ok=True)
    rounds = len(found.of["fifo"])
    text = "\n".join(
        [
            "# Transport and plugins beside their peers\n",
            f"`python benchmarks/peers.py --output benchmarks/peers.md`: {rounds} rounds, in which all take turns, on {os.cpu_count()} processors",
            f"({processor()}), Linux {platform.release()}. Load of the machine before: {before}, after: {load()}, with this run's own.\n",
            "A round counts by the lower quartile of its turns. A figure is the median of the rounds, and the ratio the median of the rounds' ratios, ours to the",
            f"peer's: of rates more is better, of times less. For the profiler the best run counts. clock_gettime alone takes {found.best('clock'):.0f} ns.\n",
            *table(found),
            "",
            *(f"{line}\n" for line in notes(programs, found)),
        ]
    )
    print(text, end="")
    if options.output:
        options.output.write_text(text.rstrip("\n") + "\n", "utf-8")


if __name__ == "__main__":
    main()
