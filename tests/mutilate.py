"""Ways in which logs come damaged or dressed, for tests. A log is {file name: bytes}; each way is seeded and leaves its input alone."""

from __future__ import annotations

import gzip
import lzma
import random
import re
from collections.abc import Callable

import zstandard

__all__ = ["CUTS", "DAMAGE", "DRESS", "GAPS", "SCORED", "Files", "Way"]

Files = dict[str, bytes]
Way = Callable[[Files, random.Random], Files]

_PROCESS = re.compile(rb"([A-Za-z0-9_.-]+:\d+):\d+ ")
_TEARDOWN = re.compile(
    rb"operation=(Close|Stop) |Destroy COMPLETE|Proxy Service UDS\] exit|closed by (peer|localRank)|RAS .*terminat"
)
NOISE = [
    b"INFO:root:step 120 loss 2.31 lr 3e-4",
    b"",
    b"/usr/lib/python3/dist-packages/torch/nn/modules/conv.py:456: UserWarning: the given NumPy array is not writable",
    b"  0%|          | 0/1000 [00:00<?, ?it/s]\r  1%|          | 10/1000 [00:03<05:12,  3.17it/s]",
    "\u6709\u7684\u8fd8\u6253\u5370\u51fa\u4e86".encode(),
    b'{"level": "info", "msg": "checkpoint saved", "step": 120}',
    b"#       size         count      type   redop    root     time   algbw   busbw #wrong",
    b"Traceback of nothing: the NCCL documentation says NCCL INFO is verbose",
]


def _lines(data: bytes) -> list[bytes]:
    return data.split(b"\n")[:-1] if data.endswith(b"\n") else data.split(b"\n")


def _join(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _each(change: Callable[[list[bytes], random.Random], list[bytes]]) -> Way:
    return lambda files, rng: {name: _join(change(_lines(data), rng)) for name, data in files.items()}


def _processes(files: Files) -> list[list[bytes]]:
    """The lines of each process, in order. A line without a prefix goes with the line that follows it (WARN begins with an empty one)."""
    found: dict[object, list[bytes]] = {}
    for name, data in files.items():
        held: list[bytes] = []
        key: object = name
        for line in _lines(data):
            match = _PROCESS.search(line)
            if not match:
                held.append(line)
                continue
            key = match[1]
            found.setdefault(key, []).extend([*held, line])
            held = []
        found.setdefault(key, []).extend(held)
    return list(found.values())


def _weave(threads: list[list[bytes]], rng: random.Random, burst: int) -> list[bytes]:
    """Merge, keeping each process's order. ``burst`` lines at most come together."""
    threads = [t for t in threads if t]
    places = [0] * len(threads)
    live = list(range(len(threads)))
    woven: list[bytes] = []
    while live:
        i = rng.choice(live)
        for _ in range(rng.randint(1, burst)):
            # The empty line of a WARN and the WARN are one write.
            while places[i] < len(threads[i]):
                line = threads[i][places[i]]
                places[i] += 1
                woven.append(line)
                if line:
                    break
            if places[i] >= len(threads[i]):
                live.remove(i)
                break
    return woven


# -- dressing: what launchers, terminals and collectors do; nothing is lost


def interleave(files: Files, rng: random.Random) -> Files:
    return {"job.log": _join(_weave(_processes(files), rng, 3))}


def one_after_another(files: Files, rng: random.Random) -> Files:
    processes = _processes(files)
    rng.shuffle(processes)
    return {"job.log": _join([line for process in processes for line in process])}


def _tagged(tag: Callable[[int], bytes], every: bool = True) -> Way:
    def way(files: Files, rng: random.Random) -> Files:
        processes = [
            [tag(i) + line if line or every else line for line in lines] for i, lines in enumerate(_processes(files))
        ]
        return {"job.log": _join(_weave(processes, rng, 5))}

    return way


def crlf(files: Files, rng: random.Random) -> Files:
    return {name: data.replace(b"\n", b"\r\n") for name, data in files.items()}


def _coloured(raw: bool) -> Way:
    start, end = (b"\x1b[36m", b"\x1b[0m") if raw else (b"ESC[36m", b"ESC[0m")
    return _each(lambda lines, rng: [start + line + end if line and rng.random() < 0.7 else line for line in lines])


def noise(files: Files, rng: random.Random) -> Files:
    def change(lines: list[bytes], rng: random.Random) -> list[bytes]:
        changed = []
        for line in lines:
            if rng.random() < 0.1:
                changed.append(rng.choice(NOISE))
            changed.append(line)
        return changed

    return _each(change)(files, rng)


def bad_bytes(files: Files, rng: random.Random) -> Files:
    def change(lines: list[bytes], rng: random.Random) -> list[bytes]:
        changed = []
        for line in lines:
            if rng.random() < 0.05:
                changed.append(rng.choice([b"\xff\xfe\x80 broken", b"\x00\x00\x00", b"\xc3", b"caf\xe9 \x00 end"]))
            changed.append(line)
        return changed

    return _each(change)(files, rng)


def halves(files: Files, rng: random.Random) -> Files:
    parts: Files = {}
    for name, data in files.items():
        lines = _lines(data)
        at = rng.randrange(1, max(2, len(lines)))
        parts[f"{name}.1"], parts[f"{name}.2"] = _join(lines[:at]), _join(lines[at:])
    return parts


def compressed(files: Files, rng: random.Random) -> Files:
    ways = [
        ("gz", gzip.compress),
        ("xz", lambda d: lzma.compress(d, preset=0)),
        ("zst", zstandard.ZstdCompressor().compress),
    ]
    result: Files = {}
    for name, data in files.items():
        suffix, pack = rng.choice(ways)
        result[f"{name}.{suffix}"] = pack(data)
    return result


DRESS: dict[str, Way] = {
    "interleaved": interleave,
    "one_after_another": one_after_another,
    "mpirun": _tagged(lambda i: b"[1,%d]<stdout>:" % i),
    "torchrun": _tagged(lambda i: b"[rank%d]:" % i),
    "torchrun_short": _tagged(lambda i: b"[%d]:" % i),
    "srun": _tagged(lambda i: b"%2d: " % i),
    "kubectl": _tagged(lambda i: b"[pod/trainer-worker-%d/pytorch] " % i),
    "docker": _tagged(lambda i: b"2026-11-21T01:35:22.%09dZ " % (i * 37)),
    "quoted": _each(lambda lines, rng: [b"> " + line for line in lines]),
    "crlf": crlf,
    "colours": _coloured(True),
    "literal_colours": _coloured(False),
    "noise": noise,
    "bad_bytes": bad_bytes,
    "halves": halves,
    "compressed": compressed,
}

# -- cuts: the end is missing


def cut_lines(files: Files, rng: random.Random) -> Files:
    share = rng.uniform(0.1, 0.8)
    return {name: _join(_lines(data)[: int(len(_lines(data)) * share)]) for name, data in files.items()}


def cut_bytes(files: Files, rng: random.Random) -> Files:
    share = rng.uniform(0.1, 0.8)
    return {name: data[: int(len(data) * share)] for name, data in files.items()}


def cut_before_teardown(files: Files, rng: random.Random) -> Files:
    def change(lines: list[bytes], rng: random.Random) -> list[bytes]:
        for i, line in enumerate(lines):
            if _TEARDOWN.search(line):
                return lines[:i]
        return lines

    return _each(change)(files, rng)


def cut_one(files: Files, rng: random.Random) -> Files:
    """One process loses its end; the others are whole."""
    processes = _processes(files)
    one = rng.randrange(len(processes))
    lines = processes[one]
    end = next((i for i, line in enumerate(lines) if _TEARDOWN.search(line)), len(lines))
    processes[one] = lines[: int(end * rng.uniform(0.1, 0.9))]
    return {f"process{i}.log": _join(lines) for i, lines in enumerate(processes)}


CUTS: dict[str, Way] = {"cut_lines": cut_lines, "cut_bytes": cut_bytes, "cut_before_teardown": cut_before_teardown}

# -- damage: something is lost or wrong in the middle


def dropped(files: Files, rng: random.Random) -> Files:
    return _each(lambda lines, rng: [line for line in lines if rng.random() > 0.05])(files, rng)


def duplicated(files: Files, rng: random.Random) -> Files:
    return _each(lambda lines, rng: [copy for line in lines for copy in [line] * (2 if rng.random() < 0.05 else 1)])(
        files, rng
    )


def flipped(files: Files, rng: random.Random) -> Files:
    result: Files = {}
    for name, data in files.items():
        changed = bytearray(data)
        for _ in range(max(1, len(data) // 2000)):
            changed[rng.randrange(len(data))] = rng.randrange(256)
        result[name] = bytes(changed)
    return result


def glued(files: Files, rng: random.Random) -> Files:
    def change(lines: list[bytes], rng: random.Random) -> list[bytes]:
        changed = [b""]
        for line in lines:
            if rng.random() < 0.03:
                changed[-1] += line
            else:
                changed.append(line)
        return changed[1:]

    return _each(change)(files, rng)


def torn(files: Files, rng: random.Random) -> Files:
    return _each(
        lambda lines, rng: [line[: rng.randrange(len(line) + 1)] if rng.random() < 0.03 else line for line in lines]
    )(files, rng)


def shuffled(files: Files, rng: random.Random) -> Files:
    """A collector sorts by a time too coarse for it: lines change places with their neighbours, those of one process, too."""

    def change(lines: list[bytes], rng: random.Random) -> list[bytes]:
        return [lines[i] for _, i in sorted((i + rng.uniform(0, 5), i) for i in range(len(lines)))]

    return _each(change)(files, rng)


DAMAGE: dict[str, Way] = {
    "dropped": dropped,
    "duplicated": duplicated,
    "flipped": flipped,
    "glued": glued,
    "torn": torn,
}

# -- gaps: a whole part was never collected


def missing_process(files: Files, rng: random.Random) -> Files:
    processes = _processes(files)
    if len(processes) > 1:
        processes.pop(rng.randrange(len(processes)))
    return {f"process{i}.log": _join(lines) for i, lines in enumerate(processes)}


#: What NCCL_DEBUG_SUBSYS leaves out, by words of its lines.
_SUBSYSTEMS = (
    re.compile(rb": opCount "),
    re.compile(rb"opId|Received and initiated|Connected to proxy|New proxy|Proxy Service"),
    re.compile(rb"UDS|shareable|Alloc Size|IPC "),
    re.compile(rb" RAS "),
    re.compile(rb"Channel \d|Ring \d|Trees |Connected all|via "),
)


def missing_subsystem(files: Files, rng: random.Random) -> Files:
    gone = rng.choice(_SUBSYSTEMS)
    return _each(lambda lines, rng: [line for line in lines if b"NCCL INFO" not in line or not gone.search(line)])(
        files, rng
    )


GAPS: dict[str, Way] = {"missing_process": missing_process, "missing_subsystem": missing_subsystem}

#: All that the score applies: the tests of each way take the first three tables.
SCORED: dict[str, Way] = {**CUTS, "cut_one": cut_one, **DAMAGE, "shuffled": shuffled, **GAPS}
