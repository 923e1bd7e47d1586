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

from psmkit.cli.output import check_output, show
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
        raise click.BadParameter(f"{value!r}: bytes such as 64K, 100M or 1G are meant")
    return int(number) * unit


def _outputs(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where telemetry goes, and how much of it."""
    for option in reversed(
        (
            click.option("--endpoint", metavar="URL", help="A collector.  [OTEL_EXPORTER_OTLP_ENDPOINT]"),
            click.option(
                "--protocol",
                type=click.Choice(("grpc", "http/protobuf")),
                help="How it is spoken to.  [OTEL_EXPORTER_OTLP_PROTOCOL, grpc]",
            ),
            click.option("--timeout", type=click.FloatRange(0.1, 600), help="Seconds an export may take.  [10]"),
            click.option(
                "--spans", type=click.IntRange(0, 1_000_000), default=2000, help="Most spans an interval.  [2000]"
            ),
            click.option(
                "--series", type=click.IntRange(2, 1_000_000), default=1000, help="Most series of a metric.  [1000]"
            ),
            click.option("--queue", type=click.IntRange(1, 100_000), default=64, help="Most batches that wait.  [64]"),
            click.option(
                "--deadline",
                type=click.FloatRange(0, 3600),
                default=5.0,
                help="Seconds to send the rest at the end.  [5]",
            ),
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


@click.group("telemetry", invoke_without_command=True)
@click.option("--dir", "folder", metavar="DIR", help="Where the record files lie.  [PSM_RECORD_DIR]")
@_outputs
@click.option("--prometheus", metavar="[ADDR:]PORT", help="Serve Prometheus there.  [ADDR 127.0.0.1]")
@click.option(
    "--interval", type=click.FloatRange(0.1, 3600), help="Seconds between exports.  [PSM_TELEMETRY_INTERVAL, 5]"
)
@click.option("--once", is_flag=True, help="Take what is there, export or show it, and end.")
@click.option("--look", is_flag=True, help="Change nothing: windows stay for whoever takes them.")
@click.option("--record", metavar="FILE", help="Keep all that was taken: .parquet, or any name for an Arrow stream.")
@click.option("--record-max", default="1G", callback=_bytes, help="Most bytes of FILE.  [1G]")
@click.option(
    "--record-rows", type=click.IntRange(0, 10_000_000), default=20_000, help="Raw rows of FILE an interval.  [20000]"
)
@click.option(
    "--logs", "logs", metavar="PATH", multiple=True, help="Export what `psmkit analyze` finds there. Repeatable."
)
@click.option("--no-verdict", is_flag=True, help="Do not judge the windows: no findings of slow or stuck ranks.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int | None:
    """Export what the ranks of this host do: metrics, traces and findings.

    Reads the windows that libnccl-profiler-psm.so keeps for each communicator, and libpsm's connections. Give it a collector
    (OTLP), --prometheus, --record, or --once, which shows tables. docs/telemetry.md lists the metrics.
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
        # No rank has run yet: they make it so, too.
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
                    f"takes the windows in {given['folder'] or default_directory()}, exports{where} every {interval:g} s"
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


@command.command("replay")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@_outputs
@click.option("--no-verdict", is_flag=True, help="Do not judge the windows again.")
def replay(file: str, **given: Any) -> int:
    """Export a recording again, with the times it has; without a collector, show it.

    Metrics, spans and findings are the same as those of the run that was recorded, the sidecar's own metrics apart.
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
        raise InputError(file, "nothing was recorded there")
    if not wanted.exports:
        show(summary(outputs.pipeline.all_points(), outputs.pipeline.findings))
    return _end(lost)


@command.command("mask", context_settings={"ignore_unknown_options": True})  # EVENTS may begin with a -
@click.argument("process", metavar="PID|all")
@click.argument("events", metavar="EVENTS")
@click.option("--dir", "folder", metavar="DIR", help="Where the record files lie.  [PSM_RECORD_DIR]")
def mask(process: str, events: str, folder: str | None) -> None:
    """Say which events NCCL shall tell the plugin from now on.

    EVENTS is what PSM_PROFILER_EVENTS takes: names with commas between them (group, coll, p2p, proxy_op, proxy_step, proxy_ctrl, kernel_ch, net,
    group_api, coll_api, p2p_api, kernel_launch, ce_coll, ce_sync, ce_batch), a - before what is to be left out, default, all, none, or a number
    such as 0x1f. The plugin adds the parents that they need.
    """
    from psmkit.telemetry.errors import TelemetryError
    from psmkit.telemetry.masks import mask_of
    from psmkit.telemetry.reader import Reader

    if process != "all" and not (process.isdecimal() and process.isascii()):
        raise click.BadParameter(f"{process!r}: a process id or all is meant", param_hint="PID")
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
        who = "no process" if process == "all" else f"process {process} is not alive, or"
        raise TelemetryError(f"{who} has no communicator with the profiler plugin here")
    show("".join(f"{line}: {wanted:#x}\n" for line in done))


@command.command("metrics")
@click.option(
    "--format", "form", type=click.Choice(("text", "json", "markdown")), default="text", help="How to write it.  [text]"
)
def metrics(form: str) -> None:
    """All metrics that are exported: name, unit, kind, attributes, meaning."""
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


@command.command("dashboards")
@click.argument("folder", type=click.Path(file_okay=False), metavar="DIR")
def dashboards(folder: str) -> None:
    """Write the dashboards for Grafana into DIR."""
    from importlib.resources import files

    os.makedirs(folder, exist_ok=True)
    for source in sorted(files("psmkit.telemetry").joinpath("dashboards").iterdir(), key=lambda f: f.name):
        if source.name.endswith(".json"):
            path = os.path.join(folder, source.name)
            show(source.read_text(encoding="utf-8"), path)
            show(path + "\n")


@command.command("picture")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("-o", "--output", metavar="FILE", help="Where the SVG goes.  [standard output]")
@click.option("--comm", metavar="HASH", help="Of this communicator.  [the one with the most rows]")
def picture(file: str, output: str | None, comm: str | None) -> None:
    """Draw the operations of a recording on a time axis, a band for each rank."""
    from psmkit.telemetry.errors import missing
    from psmkit.telemetry.picture import timeline

    check_output(output, "picture")
    try:
        from psmkit.telemetry.recording import read
    except ImportError as error:
        raise missing("a recording", error) from None
    show(timeline(list(read(file)), comm), output)
