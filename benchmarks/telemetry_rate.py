"""Run a profiler at a given rate of events with the sidecar: which events are exported or lost, and the cost of the sidecar.

    python benchmarks/telemetry_rate.py [--rates 100000,1000000] [--seconds 10] [--threads 1]

A program calls libnccl-profiler-psm.so as NCCL does. `psmkit telemetry` takes the windows and exports metrics and spans (its defaults) by OTLP
over gRPC to a separate receiver. Its counters are read from its Prometheus endpoint after the program has ended: the number of begun events must
equal taken plus lost ones.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
STEPS = 8
EVENTS = 1 + 2 * (1 + STEPS)  # of an operation, over two channels
RECEIVER = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.telemetry.receiver import Receiver
receiver = Receiver("grpc")
print(receiver.port, flush=True)
sys.stdin.read()
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def counters(port: int) -> dict[str, float]:
    """Sums of the profiler's counters over all ranks."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    sums: dict[str, float] = {}
    for name, value in re.findall(r"^nccl_profiler_(\w+?)_total\{[^}]*\} (\S+)$", text, re.M):
        sums[name] = sums.get(name, 0.0) + float(value)
    for outcome, value in re.findall(r'^psmkit_telemetry_spans_total\{.*?psmkit_outcome="(\w+)"\} (\S+)$', text, re.M):
        sums[f"spans {outcome}"] = sums.get(f"spans {outcome}", 0.0) + float(value)
    return sums


def measure(program: Path, rate: int, seconds: float, threads: int, collector: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        port = free_port()
        environment = {**os.environ, "PSM_RECORD_DIR": folder, "PSM_RANK_RATE": str(rate)}
        command = ["-m", "psmkit", "telemetry", "--dir", folder, "--prometheus", str(port), "--endpoint", collector]
        sidecar = subprocess.Popen([sys.executable, *command, "--interval", "2"], cwd=ROOT, stderr=subprocess.DEVNULL)
        while True:  # it answers, so it runs
            try:
                counters(port)
                break
            except OSError:
                time.sleep(0.1)
        start = spent(sidecar.pid)
        library = ROOT / "psmkit" / "psm" / "lib" / "libnccl-profiler-psm.so"
        operations = int(rate * seconds / EVENTS / threads)
        rank = subprocess.Popen(
            [program, library, str(threads), str(operations), str(STEPS), "8"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert rank.stdin is not None and rank.stdout is not None
        rank.stdout.readline()
        time.sleep(1)  # time for the sidecar to find it
        begin = time.monotonic()
        rank.stdin.write("\n")
        rank.stdin.flush()
        told = rank.stdout.readline().split()
        lasted = time.monotonic() - begin
        rank.wait()
        deadline = time.monotonic() + 60
        while True:
            now = counters(port)
            lost = now.get("dropped", 0) + now.get("overwritten", 0)
            if now.get("begun") == float(told[0]) and now["begun"] == now["events"] + lost + now.get("torn", 0):
                break
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        used = spent(sidecar.pid) - start
        wall = time.monotonic() - begin
        sidecar.send_signal(signal.SIGTERM)
        sidecar.wait()
    exact = now.get("begun", 0) == float(told[0]) == now.get("events", 0) + lost + now.get("torn", 0)
    print(
        f"{float(told[0]) / lasted:10,.0f} events/s for {lasted:.1f} s: {int(told[0]):,} begun = {now.get('events', 0):,.0f} taken + {lost:,.0f} lost"
        f"{'' if exact else ' NOT EXACT: ' + str(now)}; spans {now.get('spans built', 0):,.0f} made, {now.get('spans dropped', 0):,.0f} dropped; "
        f"sidecar {100 * used / wall:.1f} % of a core"
    )


def spent(pid: int) -> float:
    """CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="100000,1000000")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "rank"
        source = ROOT / "tests" / "csrc" / "telemetry" / "rank.c"
        subprocess.run(
            [
                "cc",
                "-std=gnu11",
                "-O2",
                f"-I{ROOT / 'psmkit' / 'psm' / 'include'}",
                source,
                "-o",
                program,
                "-ldl",
                "-lpthread",
            ],
            check=True,
        )
        receiver = subprocess.Popen(
            [sys.executable, "-c", RECEIVER, str(ROOT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert receiver.stdout is not None and receiver.stdin is not None
        collector = f"http://127.0.0.1:{receiver.stdout.readline().strip()}"
        for rate in given.rates.split(","):
            measure(program, int(rate), given.seconds, given.threads, collector)
        receiver.stdin.close()
        receiver.wait()


if __name__ == "__main__":
    main()
