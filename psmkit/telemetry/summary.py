"""Tables for a terminal with the content of one update of the windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from psmkit.model import Finding
from psmkit.report import drawing
from psmkit.report.layout import columns
from psmkit.telemetry.metrics import BOUNDS
from psmkit.telemetry.totals import Distribution, Point

__all__ = ["summary"]

_size = partial(drawing.size, digits=3)
_time = partial(drawing.duration, digits=3)


def _median(found: Distribution, unit: str) -> float:
    """The upper bound of the bucket with the median, limited to the greatest value."""
    running = 0
    for bound, count in zip((*BOUNDS[unit], found.most), found.counts, strict=True):
        running += count
        if 2 * running >= found.count:
            return min(bound, found.most)
    return found.most


def _table(title: str, head: Sequence[str], rows: list[tuple[str, ...]]) -> list[str]:
    return [title, "\n".join(columns(rows, head)), ""] if rows else []


class _Points:
    """Points by metric and attributes."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._by_name: dict[str, dict[tuple[str, ...], Point]] = {}
        for point in points:
            self._by_name.setdefault(point.metric.name, {})[point.values] = point

    def of(self, name: str) -> dict[tuple[str, ...], Point]:
        return self._by_name.get(name, {})

    def number(self, name: str, values: tuple[str, ...]) -> float:
        point = self.of(name).get(values)
        return 0.0 if point is None or isinstance(point.value, Distribution) else point.value


def _communicators(points: _Points) -> Iterator[tuple[str, ...]]:
    number = points.number
    for values in points.of("nccl.comm.info"):
        key = values[:2]
        lost = sum(number("nccl.profiler.dropped", (*key, why)) for why in ("full", "memory"))
        lost += number("nccl.profiler.overwritten", key)
        yield (
            key[0], f"{key[1]} of {values[3]}".replace("-1", "?"), values[5], values[7], f"{number('nccl.profiler.events', key):.0f}", f"{lost:.0f}",
            f"{number('nccl.profiler.incomplete', key):.0f}", values[2],
        )  # fmt: skip


def _operations(points: _Points) -> Iterator[tuple[str, ...]]:
    for of, where in (("nccl.collective", ("nccl.algorithm", "nccl.protocol")), ("nccl.p2p", ("nccl.peer",))):
        for values, point in points.of(f"{of}.duration").items():
            found, about = point.value, point.attributes
            size = points.of(f"{of}.size").get(values)
            assert isinstance(found, Distribution)
            mean = size.value.sum / size.value.count if size and isinstance(size.value, Distribution) else 0
            how = "/".join(("rank " if name == "nccl.peer" else "") + about[name] for name in where)
            yield (
                about["nccl.comm.hash"], about["nccl.rank"], about["nccl.operation"], how, str(found.count), _size(mean),
                _time(found.sum / found.count), f"<= {_time(_median(found, 's'))}", _time(found.most),
            )  # fmt: skip


def _links(points: _Points) -> Iterator[tuple[str, ...]]:
    number = points.number
    for values, point in points.of("nccl.transfer.io").items():
        count = number("nccl.transfer.count", values)
        fit = (*values, "avg")
        rate = number("nccl.link.rate", fit)
        why = next((v[-1] for v in points.of("nccl.link.withheld") if v[:-1] == fit), "")
        assert not isinstance(point.value, Distribution)
        yield (
            values[0], values[1], ("to " if values[3] == "send" else "from ") + values[2], f"{count:.0f}", _size(point.value),
            _time(number("nccl.link.latency", fit)) if rate else "", f"{rate / 1e9:.3g} GB/s" if rate else "",
            f"{number('nccl.link.r_squared', fit):.3f}" if rate else "", why.replace("_", " "),
        )  # fmt: skip


def _connections(points: _Points) -> Iterator[tuple[str, ...]]:
    number = points.number
    for values in points.of("psm.step.stage"):
        key = values[:6]
        done, total = (f"{number(f'psm.step.{name}', key):.0f}" for name in ("done", "total"))
        yield (
            values[0], values[1], ("to " if values[5] == "send" else "from ") + values[2], values[3], values[6], f"{done} of {total}",
            _size(number("psm.step.size", key)), f"{_time(number('psm.step.age', key))} ago",
        )  # fmt: skip


def summary(points: Sequence[Point], findings: Sequence[Finding]) -> str:
    """Communicators, operations, links, losses, connections and findings."""
    found = _Points(points)
    out = [
        *_table(
            "Communicators",
            ("communicator", "rank", "pid", "owner", "events", "lost", "incomplete", "name"),
            sorted(_communicators(found)),
        ),
        *_table(
            "Operations",
            ("communicator", "rank", "operation", "how", "count", "size", "mean", "median", "most"),
            sorted(_operations(found)),
        ),
        *_table(
            "Links",
            ("communicator", "rank", "peer", "transfers", "bytes", "latency", "rate", "R squared", "withheld"),
            sorted(_links(found)),
        ),
        *_table(
            "libpsm's connections",
            ("pid", "rank", "peer", "channel", "stage", "steps", "bytes", "moved"),
            sorted(_connections(found)),
        ),
    ]
    for finding in findings:
        out.append(f"{finding.severity.value} {finding.code}: {finding.title}")
        out.append(f"  {finding.explanation}")
        out += [f"  {evidence}" for evidence in finding.evidence[:3]]
    return (
        "\n".join(out).rstrip("\n") + "\n"
        if out
        else "no windows of the profiler plugin, and no connections of libpsm\n"
    )
