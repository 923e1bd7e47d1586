"""``psmkit telemetry``: Export what the profiler plugin measures: OpenTelemetry, Prometheus, files."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli.command import Command, Group
from psmkit.cli.output import check_apart, check_output, show
from psmkit.model.errors import InputError

if TYPE_CHECKING:
    from psmkit.cli.telemetry_logs import LogFindings
    from psmkit.telemetry.outputs import Wanted

__all__ = ["command"]

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_LEAST_RECORD = 1 << 16
_MOST_TREES = 1024
_ROWS_OF_A_TREE = 32  # about, of an operation that is kept for spans


def _bytes(_ctx: click.Context, _param: click.Parameter, value: str) -> int:
    text = value.strip().upper().removesuffix("B").removesuffix("I")
    unit = _UNITS.get(text[-1:], 1)
    number = text[:-1] if unit > 1 else text
    if not (number.isdecimal() and number.isascii()) or int(number) * unit < _LEAST_RECORD:
        raise click.BadParameter(f"{value!r}: expected a number of bytes such as 64K, 100M or 1G")
    return int(number) * unit


_AMOUNTS: tuple[tuple[str, click.IntRange | click.FloatRange, float, str], ...] = (
    ("--spans", click.IntRange(0, 1_000_000), 2000, "Maximum number of spans of an interval.  [2000]"),
    ("--series", click.IntRange(2, 1_000_000), 1000, "Maximum number of series of a metric.  [1000]"),
    ("--queue", click.IntRange(1, 100_000), 64, "Maximum number of batches that wait for export.  [64]"),
    ("--deadline", click.FloatRange(0, 3600), 5.0, "Seconds to export the rest at the end.  [5]"),
)


def _outputs(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options for where telemetry goes, and how much of it."""
    for option in reversed(
        (
            click.option(
                "--endpoint", metavar="URL", help="Export to this OTLP collector.  [OTEL_EXPORTER_OTLP_ENDPOINT]"
            ),
            click.option(
                "--protocol",
                type=click.Choice(("grpc", "http/protobuf")),
                help="Protocol of the collector.  [OTEL_EXPORTER_OTLP_PROTOCOL, grpc]",
            ),
            click.option("--timeout", type=click.FloatRange(0.1, 600), help="Seconds that an export may take.  [10]"),
            *(click.option(name, type=kind, default=default, help=help_) for name, kind, default, help_ in _AMOUNTS),
        )
    ):
        function = option(function)
    return function


def _wanted(given: dict[str, Any], **more: Any) -> Wanted:
    from psmkit.telemetry.outputs import Wanted
    from psmkit.telemetry.pipeline import Settings

    return Wanted(
        endpoint=given["endpoint"],
        protocol=given["protocol"],
        timeout=given["timeout"],
        queue=given["queue"],
        settings=Settings(given["spans"], given["series"]),
        **more,
    )


def _say(text: str) -> None:
    from psmkit.report.escape import visible

    print(f"psmkit telemetry: {visible(text)}", file=sys.stderr, flush=True)


@contextmanager
def _until_signal() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set. A second one ends the process as usual."""
    stop = threading.Event()
    before: dict[signal.Signals, Any] = {}

    def end(number: int, _frame: object) -> None:
        stop.set()
        for one, handler in before.items():
            signal.signal(one, handler)

    for one in (signal.SIGTERM, signal.SIGINT):
        before[one] = signal.signal(one, end)
    try:
        yield stop
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@click.group(
    "telemetry",
    cls=Group,
    invoke_without_command=True,
    examples=(
        "psmkit telemetry --endpoint http://localhost:4317",
        "psmkit telemetry --prometheus 9400 --record run.parquet",
        "psmkit telemetry --once                # show a table and exit",
    ),
)
@click.option("--dir", "folder", metavar="DIR", help="Directory of the record files.  [PSM_RECORD_DIR]")
@_outputs
@click.option("--prometheus", metavar="[ADDR:]PORT", help="Serve metrics for Prometheus there.  [ADDR 127.0.0.1]")
@click.option(
    "--interval", type=click.FloatRange(0.1, 3600), help="Seconds between exports.  [PSM_TELEMETRY_INTERVAL, 5]"
)
@click.option("--once", is_flag=True, help="Export or show the current data once, and exit.")
@click.option("--look", is_flag=True, help="Only read: the data stays in the windows for another reader.")
@click.option(
    "--record",
    metavar="FILE",
    help="Also record everything in FILE: Parquet if the name ends in .parquet, else an Arrow stream.",
)
@click.option("--record-max", default="1G", callback=_bytes, help="Maximum size of FILE.  [1G]")
@click.option(
    "--record-rows",
    type=click.IntRange(0, 10_000_000),
    default=20_000,
    help="Maximum number of raw rows in FILE for each interval.  [20000]",
)
@click.option(
    "--logs",
    "logs",
    metavar="PATH",
    multiple=True,
    help="Also export the findings of `psmkit analyze PATH`. Repeatable.",
)
@click.option("--no-verdict", is_flag=True, help="Do not look for slow or stuck ranks.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int | None:
    """Export what the ranks of this host measure: metrics, traces and findings.

    The command reads the windows that libnccl-profiler-psm.so writes for each communicator, and the connections of libpsm. Give it an
    OTLP collector (--endpoint), --prometheus or --record; --once alone shows tables. docs/telemetry.md lists the metrics.
    """
    if ctx.invoked_subcommand is not None:
        return None
    from psmkit.telemetry.outputs import check
    from psmkit.telemetry.sidecar import interval_of

    wanted = _wanted(given, prometheus=given["prometheus"], record=given["record"], record_max=given["record_max"])
    check(wanted, given["once"])
    interval = interval_of(given["interval"], os.environ)
    if wanted.record is not None:
        check_output(wanted.record, "recording")
    return _run(wanted, interval, given)


def _run(wanted: Wanted, interval: float, given: dict[str, Any]) -> int:
    from psmkit.logparse.recordfiles import default_directory
    from psmkit.telemetry.online import Watch
    from psmkit.telemetry.outputs import Outputs
    from psmkit.telemetry.reader import Reader
    from psmkit.telemetry.sidecar import Taker, run
    from psmkit.telemetry.summary import summary

    once: bool = given["once"]
    logs = _log_findings(given["logs"])
    if given["folder"] is None and not os.path.exists(where := default_directory()):
        # No rank has run yet: it would create the folder with the same mode.
        os.mkdir(where, 0o700)
    with _until_signal() as stop, Reader(given["folder"], consume=not given["look"]) as reader:
        reader.set(
            spans=min(max(8, given["spans"] // _ROWS_OF_A_TREE), _MOST_TREES),
            rows=given["record_rows"] if wanted.record else 0,
        )
        outputs = Outputs(wanted, _say, watch=None if given["no_verdict"] else Watch())
        lost = 0
        try:
            taker = Taker(reader, given["folder"])
            if not once:
                where = f" to {', '.join(outputs.places)}" if outputs.places else ""
                _say(
                    f"reads the windows in {given['folder'] or default_directory()}, exports{where} every {interval:g} s"
                )
            if once:
                stop.set()
                if logs is not None:
                    logs.read()
            elif logs is not None:
                logs.start()
            run(reader, taker, outputs.pipeline, stop, interval, logs.new if logs is not None else tuple)
        finally:
            if logs is not None:
                logs.stop()
            lost = outputs.close(given["deadline"])
    if once and not (wanted.exports or wanted.record):
        show(summary(outputs.pipeline.all_points(), outputs.pipeline.findings))
    return _end(lost)


def _end(lost: int) -> int:
    if lost:
        _say(f"{lost} metric points, spans and log records did not reach the collector")
    return 2 if lost else 0


def _log_findings(paths: Sequence[str]) -> LogFindings | None:
    if not paths:
        return None
    from psmkit.cli.telemetry_logs import LogFindings

    for path in paths:
        if not os.path.exists(path):
            raise InputError(path, "no such file or folder")
    return LogFindings(paths, _say)


@command.command(
    "replay",
    examples=(
        "psmkit telemetry replay run.parquet",
        "psmkit telemetry replay run.parquet --endpoint http://localhost:4317",
    ),
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@_outputs
@click.option("--no-verdict", is_flag=True, help="Do not look for slow or stuck ranks again.")
def replay(file: str, **given: Any) -> int:
    """Export a recording again, with its original times. Without a collector, show it.

    Metrics, spans and findings are those of the recorded run, except for the metrics of the exporter itself.
    """
    from psmkit.telemetry.errors import missing
    from psmkit.telemetry.online import Watch
    from psmkit.telemetry.outputs import Outputs

    try:
        from psmkit.telemetry.recording import read
    except ImportError as error:
        raise missing("replay", error) from None
    from psmkit.telemetry.summary import summary

    wanted = _wanted(given)
    outputs = Outputs(wanted, _say, watch=None if given["no_verdict"] else Watch(), own=False)
    lost = 0
    try:
        for take in read(file):
            outputs.replay(take)
    finally:
        lost = outputs.close(given["deadline"])
    if not outputs.pipeline.takes:
        raise InputError(file, "the recording is empty")
    if not wanted.exports:
        show(summary(outputs.pipeline.all_points(), outputs.pipeline.findings))
    return _end(lost)


class _Mask(Command):
    """Names the events in its help. Only the help reads the facts about them."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from psmkit.telemetry.masks import NAMES

        self.help = (self.help or "").replace("NAMES", ", ".join(NAMES))
        super().format_help_text(ctx, formatter)


@command.command(
    "mask",
    cls=_Mask,
    context_settings={"ignore_unknown_options": True},  # EVENTS may begin with a -
    examples=("psmkit telemetry mask all coll,p2p", "psmkit telemetry mask 4711 default,-proxystep"),
)
@click.argument("process", metavar="PID|all")
@click.argument("events", metavar="EVENTS")
@click.option("--dir", "folder", metavar="DIR", help="Directory of the record files.  [PSM_RECORD_DIR]")
def mask(process: str, events: str, folder: str | None) -> None:
    """Select the events that NCCL reports to the plugin, in running processes.

    EVENTS has the syntax of PSM_PROFILER_EVENTS: a comma-separated list of names (NAMES), default, all or none; a - before a name
    removes it. A number such as 0x1f works, too. The plugin adds the parent events that they need.
    """
    from psmkit.telemetry.errors import TelemetryError
    from psmkit.telemetry.masks import mask_of
    from psmkit.telemetry.reader import Reader

    if process != "all" and not (process.isdecimal() and process.isascii()):
        raise click.BadParameter(f"{process!r}: expected a process id, or all", param_hint="PID")
    wanted = mask_of(events)
    done = []
    with Reader(folder, consume=False) as reader:
        reader.poll()
        for comm in reader.comms():
            # 0: its process lives.
            if (process == "all" or int(process) == int(comm["pid"])) and comm["owner"] == 0:
                reader.set_mask(int(comm["id"]), wanted)
                done.append(
                    f"process {int(comm['pid'])}, communicator {int(comm['comm_hash']):016x}, rank {int(comm['rank'])}"
                )
    if not done:
        who = "no living process here" if process == "all" else f"process {process} is dead, or it"
        raise TelemetryError(f"{who} has {'a' if process == 'all' else 'no'} communicator with the profiler plugin")
    show("".join(f"{line}: {wanted:#x}\n" for line in done))


@command.command("metrics", examples=("psmkit telemetry metrics", "psmkit telemetry metrics --format markdown"))
@click.option(
    "--format", "form", type=click.Choice(("text", "json", "markdown")), default="text", help="Output format.  [text]"
)
def metrics(form: str) -> None:
    """List the exported metrics: name, unit, kind, attributes, meaning."""
    from psmkit.telemetry.metrics import METRICS, prometheus_name

    if form == "json":
        import json
        from dataclasses import asdict

        show(json.dumps([asdict(m) | {"prometheus": prometheus_name(m)} for m in METRICS.values()], indent=2) + "\n")
        return
    if form == "markdown":
        lines = ["| metric | unit | kind | attributes | meaning |", "|---|---|---|---|---|"]
        for m in METRICS.values():
            lines.append(f"| `{m.name}` | {m.unit} | {m.kind} | {' '.join(m.attributes)} | {m.meaning} |")
        show("\n".join(lines) + "\n")
        return
    for m in METRICS.values():
        show(f"{m.name} ({m.kind}, {m.unit})\n    {m.meaning}\n    {', '.join(m.attributes) or 'no attributes'}\n")


@command.command("dashboards", examples=("psmkit telemetry dashboards grafana/",))
@click.argument("folder", type=click.Path(file_okay=False), metavar="DIR")
def dashboards(folder: str) -> None:
    """Write the Grafana dashboards to DIR."""
    from importlib.resources import files

    os.makedirs(folder, exist_ok=True)
    for source in sorted(files("psmkit.telemetry").joinpath("dashboards").iterdir(), key=lambda f: f.name):
        if source.name.endswith(".json"):
            path = os.path.join(folder, source.name)
            show(source.read_text(encoding="utf-8"), path)
            show(path + "\n")


@command.command(
    "picture",
    examples=(
        "psmkit telemetry picture run.parquet -o run.svg",
        "psmkit telemetry picture run.parquet --format html -o run.html",
    ),
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("-o", "--output", metavar="FILE", help="Write the picture to FILE.  [standard output]")
@click.option("--comm", metavar="HASH", help="Draw this communicator.  [the one with the most rows]")
@click.option(
    "--format",
    "form",
    type=click.Choice(("svg", "html")),
    default="svg",
    help="svg has the last operations; html has all of them, to zoom and search in a browser.  [svg]",
)
def picture(file: str, output: str | None, comm: str | None, form: str) -> None:
    """Draw the operations of a recording on a time axis, with a band for each rank."""
    from psmkit.telemetry.errors import missing
    from psmkit.telemetry.picture import draw, page

    check_output(output, "picture")
    check_apart(output, [file], "picture")
    try:
        from psmkit.telemetry.recording import read
    except ImportError as error:
        raise missing("a recording", error) from None
    show((page if form == "html" else draw)(list(read(file)), comm), output)
