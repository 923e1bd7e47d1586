"""``psmkit tune``: Explain, compare and generate rules for NCCL's tuner."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psmkit.cli.command import Group
from psmkit.cli.output import check_output, show
from psmkit.model.wording import counted, plural
from psmkit.report.layout import columns

if TYPE_CHECKING:
    from psmkit.tune import Model, Query, Rule, Sample

__all__ = ["command"]

_OPS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
_FILE = click.Path(exists=True, dir_okay=False)
_FORMAT = click.option(
    "--format", "form", type=click.Choice(("text", "json")), default="text", help="Output format.  [text]"
)
_OUTPUT = click.option("-o", "--output", metavar="FILE", help="Write the result to FILE.  [standard output]")
_EXTRAPOLATE = click.option(
    "--extrapolate", is_flag=True, help="Also estimate sizes that were not measured; they are marked."
)
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@click.group(
    "tune",
    cls=Group,
    examples=(
        "psmkit tune check rules.csv",
        "psmkit tune export all_reduce.txt --op allreduce -o rules.csv",
    ),
)
def command() -> None:
    """Explain and compare the rules of NCCL's tuner (libnccl-tuner-psm.so), and generate rules from measurements.

    DATA is the output of a program of nccl-tests, or CSV with the columns op, bytes, ranks, nodes, algorithm, protocol, us. Options give the
    columns that are missing.
    """


def _bytes(_ctx: click.Context, _param: click.Parameter, value: str) -> int:
    text = value.strip().upper().removesuffix("B").removesuffix("I")
    unit = _UNITS.get(text[-1:], 1)
    number = text[:-1] if unit > 1 else text
    if not (number.isdecimal() and number.isascii()):
        raise click.BadParameter(f"{value!r}: expected a number of bytes such as 4096, 64K or 4M")
    return int(number) * unit


def _data(function: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments that select measurements."""
    for name in ("nodes", "ranks", "channels"):
        function = click.option(f"--{name}", type=int, help=f"The {name} of DATA without that column.")(function)
    for name in ("protocol", "algorithm", "op"):
        function = click.option(f"--{name}", help=f"The {name} of DATA without that column.")(function)
    return click.argument("data", nargs=-1, required=True, type=_FILE)(function)


def _samples(data: Sequence[str], given: dict[str, Any]) -> list[Sample]:
    from psmkit.tune import read_samples

    known = {name: str(value) for name, value in given.items() if value is not None}
    return [sample for path in data for sample in read_samples(path, known)]


# ---- rules ----


@command.command("check", examples=("psmkit tune check rules.csv",))
@click.argument("file", type=_FILE)
def check(file: str) -> int:
    """Read a file of rules as the plugin does.

    Exit status: 0 all rules are valid; 1 a line is wrong; 2 the file cannot be read.
    """
    from psmkit.tune import RulesError, read

    try:
        found = read(file)
    except RulesError as error:
        click.echo(str(error))
        return 1
    click.echo(f"{file}: {counted(len(found.rules), 'rule')}, {counted(len(found.constants), 'constant')}")
    return 0


def _misses(rule: Rule, query: Query) -> str:
    """Why a rule does not match; empty where it does. For the reader only: the plugin's code has decided."""
    if query.op not in rule.ops:
        return f"is for {', '.join(rule.ops)}"
    for name in ("bytes", "ranks", "nodes", "nvl_domains", "pipe_ops"):
        low, high = getattr(rule, name)
        value: int = getattr(query, name)
        everything = low == 0 and high == 2**64 - 1
        if not everything and (value < 0 or not low <= value <= high):
            upper = "" if high == 2**64 - 1 else str(high)
            return f"is for {name} {low}..{upper}" + (", which this version of the table does not have" * (value < 0))
    if rule.registered not in (-1, query.registered):
        return f"is for registered {rule.registered}"
    return ""


@command.command("why", examples=("psmkit tune why --op allreduce --bytes 4M --ranks 16 --nodes 2 --config rules.csv",))
@click.option("--op", required=True, type=click.Choice(_OPS), help="The collective.")
@click.option("--bytes", "size", required=True, callback=_bytes, help="Bytes of the collective, such as 4194304 or 4M.")
@click.option("--ranks", required=True, type=click.IntRange(1), help="Number of ranks.")
@click.option("--nodes", default=1, type=click.IntRange(1), help="Number of nodes.  [1]")
@click.option("--pipe-ops", default=1, type=int, help="Number of operations of the group.  [1]")
@click.option(
    "--registered",
    default="0",
    type=click.Choice(("0", "1", "-1")),
    help="Whether the buffers are registered; -1 for tuners before v4.  [0]",
)
@click.option("--nvl-domains", default=-1, type=int, help="Number of NVLink domains; -1 for tuners before v5.  [-1]")
@click.option("--offered", default="", help="The pairs that NCCL offers, such as ring/simple,tree/ll.  [all]")
@click.option("--config", required=True, type=_FILE, help="The file of rules.")
@_FORMAT
def why(
    op: str,
    size: int,
    ranks: int,
    nodes: int,
    pipe_ops: int,
    registered: str,
    nvl_domains: int,
    offered: str,
    config: str,
    form: str,
) -> None:
    """Show which rule decides for a collective, and why the rules before it do not match."""
    from psmkit.tune import ALGORITHMS, PROTOCOLS, Query, decide, read

    pairs = tuple(pair for pair in offered.split(",") if pair)
    for pair in pairs:
        algorithm, _, protocol = pair.partition("/")
        if algorithm not in ALGORITHMS or protocol not in PROTOCOLS:
            raise click.BadParameter(f"{pair!r}: expected a pair such as ring/simple", param_hint="--offered")
    query = Query(op, size, ranks, nodes, nvl_domains, pipe_ops, int(registered), pairs)
    decision = decide(config, [query])[0]
    rules = read(config).rules
    lines = Path(config).read_text("utf-8").splitlines()
    passed = []
    for rule in rules:
        if rule.line == decision.line:
            break
        passed.append(
            (rule.line, _misses(rule, query) or "matches, but NCCL does not offer its algorithm and protocol here")
        )
    if form == "json":
        reasons = [{"line": line, "reason": reason} for line, reason in passed]
        show(json.dumps({**asdict(decision), "query": asdict(query), "passed_over": reasons}, indent=2) + "\n")
        return
    out = [f"{op} of {size} {plural(size, 'byte')}, {counted(ranks, 'rank')} on {counted(nodes, 'node')}"]
    if decision.line:
        channels = counted(decision.channels, "channel") if decision.channels else "NCCL's channels"
        chunk = f", chunks of {decision.chunk} bytes" if decision.chunk else ""
        chosen = "NCCL's choice" if decision.algorithm == "default" else f"{decision.algorithm} {decision.protocol}"
        out += [f"  {chosen}, {channels}{chunk}", f"  by {config}:{decision.line}: {lines[decision.line - 1].strip()}"]
    else:
        out.append("  NCCL decides: no rule matches")
    out += [f"  line {line} {reason}" for line, reason in passed]
    show("\n".join(out) + "\n")


def _differences(first: str, second: str, shapes: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Where two files decide differently: at each edge of a range of either, and between them."""
    from psmkit.tune import Query, decide, read

    rules = [*read(first).rules, *read(second).rules]
    edges = {e for r in rules for low, high in [r.bytes] for e in (low, high + 1) if e < 2**63} | {0, 1}
    sizes = sorted(edges)
    queries = [
        Query(op, size, ranks, nodes, 1, pipe_ops, registered)
        for op in _OPS
        for ranks, nodes in shapes
        for pipe_ops in sorted({1} | {min(e, 2**31 - 1) for r in rules for e in r.pipe_ops if 0 < e < 2**63})
        for registered in (0, 1)
        for size in sizes
    ]
    found = []
    for query, a, b in zip(queries, decide(first, queries), decide(second, queries), strict=True):
        one, two = ((d.algorithm, d.protocol, d.channels, d.chunk) for d in (a, b))
        if one != two:
            found.append({"query": asdict(query), "a": asdict(a), "b": asdict(b)})
    return found


@command.command(
    "compare", examples=("psmkit tune compare old.csv new.csv", "psmkit tune compare old.csv new.csv --shape 16,2")
)
@click.argument("a", type=_FILE)
@click.argument("b", type=_FILE)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="RANKS,NODES",
    help="Also compare this shape. Repeatable.  [the shapes of the rules]",
)
@_FORMAT
def compare(a: str, b: str, shapes: tuple[str, ...], form: str) -> int:
    """Show where two files of rules decide differently.

    Exit status: 0 they decide alike; 1 they differ; 2 a file cannot be read.
    """
    from psmkit.tune import read

    wanted: set[tuple[int, int]] = set()
    for text in shapes:
        ranks, _, nodes = text.partition(",")
        if not (ranks.isdecimal() and nodes.isdecimal()):
            raise click.BadParameter(f"{text!r}: expected RANKS,NODES such as 16,2", param_hint="--shape")
        wanted.add((int(ranks), int(nodes)))
    for rule in (*read(a).rules, *read(b).rules):
        for r in rule.ranks:
            for n in rule.nodes:
                wanted.add((r if 0 < r < 2**31 else 8, n if 0 < n < 2**31 else 1))
    found = _differences(a, b, sorted(wanted or {(8, 1)}))
    if form == "json":
        show(json.dumps(found, indent=2) + "\n")
        return 1 if found else 0
    if not found:
        show(f"{a} and {b} decide alike\n")
        return 0
    out = []
    for entry in found:
        q = entry["query"]
        sides = [
            f"{d['algorithm']} {d['protocol']} x{d['channels']} (line {d['line']})" for d in (entry["a"], entry["b"])
        ]
        registered = ", registered" if q["registered"] else ""
        out.append(
            f"{q['op']} from {q['bytes']} {plural(q['bytes'], 'byte')}, {counted(q['ranks'], 'rank')} on {counted(q['nodes'], 'node')}{registered}: {sides[0]}, {sides[1]}"
        )
    show("\n".join(out) + "\n")
    return 1


# ---- measurements ----


def _model(samples: list[Sample]) -> Model:
    from psmkit.tune import fit as fitted

    return fitted(samples)


@command.command(
    "fit",
    examples=("psmkit tune fit all_reduce.txt --op allreduce --nodes 2", "psmkit tune fit data.csv --format json"),
)
@_data
@_FORMAT
def fit(data: tuple[str, ...], form: str, **given: Any) -> None:
    """Fit latency and bandwidth of each algorithm and protocol, with the quality of the fit and the sizes that it covers."""
    model = _model(_samples(data, given))
    if form == "json":
        show(json.dumps({"fits": [asdict(f) for f in model.fits], "left_out": model.left_out}, indent=2) + "\n")
        return
    rows = [
        (
            f.op,
            f.ranks,
            f.nodes,
            str(f.kind),
            f"{f.latency:.2f}",
            f"{1e-3 / f.per_byte:.2f}",
            f"{100 * f.spread:.1f} %",
            f"{f.low}..{f.high}",
            f.samples,
        )
        for f in model.fits
    ]
    head = ("op", "ranks", "nodes", "kind", "latency us", "GB/s", "spread", "bytes", "samples")
    lines = columns(rows, head)
    lines += [f"left out: {text}" for text in model.left_out]
    show("\n".join(lines) + "\n")


def _shape(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> list[tuple[int, int]]:
    found = []
    for value in values:
        ranks, _, nodes = value.partition(",")
        if not (ranks.isdecimal() and nodes.isdecimal()) or not int(nodes) or not int(ranks):
            raise click.BadParameter(f"{value!r}: expected RANKS,NODES such as 16,2")
        found.append((int(ranks), int(nodes)))
    return found


@command.command(
    "export",
    examples=(
        "psmkit tune export data.csv -o rules.csv",
        "psmkit tune export data.csv --toml --confidence 0.9 -o rules.toml",
    ),
)
@_data
@click.option("--csv", "form", flag_value="csv", default=True, help="Write CSV.  [default]")
@click.option("--toml", "form", flag_value="toml", help="Write TOML.")
@click.option(
    "--confidence", type=click.FloatRange(0, 1), default=0.0, help="Leave out rules with less confidence.  [0]"
)
@click.option(
    "--extrapolate",
    "shapes",
    multiple=True,
    callback=_shape,
    metavar="RANKS,NODES",
    help="Also write rules for this shape, which was not measured. Repeatable.",
)
@_OUTPUT
def export(
    data: tuple[str, ...],
    form: str,
    confidence: float,
    shapes: list[tuple[int, int]],
    output: str | None,
    **given: Any,
) -> None:
    """Generate rules from measurements. NCCL decides for sizes and shapes that were not measured."""
    from psmkit.tune import rules_of, to_csv, to_toml

    check_output(output, "rules")
    rules = rules_of(_model(_samples(data, given)), confidence=confidence, extrapolate=shapes)
    head = f"{counted(len(rules), 'rule')} fitted to {', '.join(Path(path).name for path in data)}"
    show((to_toml if form == "toml" else to_csv)(rules, head), output)


@command.command("plot", examples=("psmkit tune plot data.csv -o data.html",))
@_data
@_OUTPUT
def plot(data: tuple[str, ...], output: str | None, **given: Any) -> None:
    """Plot time over size: an HTML page, or an SVG if FILE ends in .svg and DATA has one operation and shape."""
    from psmkit.model.errors import InputError
    from psmkit.tune import rules_of
    from psmkit.tune.plot import html, svg

    check_output(output, "picture")
    samples = _samples(data, given)
    model = _model(samples)
    rules = rules_of(model)
    pictures = []
    for op, ranks, nodes in model.shapes():
        key = (op, ranks, nodes)
        pictures.append(
            svg(
                f"{op}, {counted(ranks, 'rank')} on {counted(nodes, 'node')}",
                model.at(*key),
                [s for s in samples if (s.op, s.ranks, s.nodes) == key],
                [r for r in rules if (r.ops[0], r.ranks[0], r.nodes[0]) == key],
            )
        )
    if not pictures:
        raise InputError(data[0], "nothing to plot: an algorithm and protocol needs at least three sizes")
    if output and output.endswith(".svg"):
        if len(pictures) > 1:
            raise InputError(
                output,
                f"an SVG shows one operation and shape, but DATA has {len(pictures)}: name a FILE that ends in .html",
            )
        show(pictures[0], output)
    else:
        show(html(", ".join(Path(path).name for path in data), pictures), output)


@command.command("simulate", examples=("psmkit tune simulate data.csv --config rules.csv",))
@_data
@click.option("--config", required=True, type=_FILE, help="The file of rules.")
@_EXTRAPOLATE
@_FORMAT
def simulate(data: tuple[str, ...], config: str, extrapolate: bool, form: str, **given: Any) -> None:
    """Predict the time of a file of rules for the measured sizes, and compare it with the best choice."""
    from psmkit.tune import Query, decide

    model = _model(_samples(data, given))
    rows: list[dict[str, Any]] = []
    for op, ranks, nodes in model.shapes():
        fits = model.at(op, ranks, nodes)
        low, high = min(f.low for f in fits), max(f.high for f in fits)
        sizes = [low << i for i in range(math.floor(math.log2(max(1, high / max(1, low)))) + 1)]
        offered = tuple(sorted({f"{f.kind.algorithm}/{f.kind.protocol}" for f in fits}))
        decisions = decide(config, [Query(op, size, ranks, nodes, offered=offered) for size in sizes])
        for size, decision in zip(sizes, decisions, strict=True):
            best = model.best(op, ranks, nodes, size, extrapolate=extrapolate)
            pair = (decision.algorithm, decision.protocol)
            same = [f for f in fits if (f.kind.algorithm, f.kind.protocol) == pair and (extrapolate or f.covers(size))]
            exact = [f for f in same if f.kind.channels == decision.channels]
            time = min((f.time(size) for f in exact or same), default=None)
            rows.append(
                {
                    "op": op,
                    "ranks": ranks,
                    "nodes": nodes,
                    "bytes": size,
                    "line": decision.line,
                    "chosen": "/".join(pair) if decision.algorithm != "default" else "NCCL's",
                    "us": time,
                    "best": str(best.fit.kind),
                    "best_us": best.fit.time(size),
                }
            )
    if form == "json":
        show(json.dumps(rows, indent=2) + "\n")
        return
    table = []
    for row in rows:
        spent = "not measured" if row["us"] is None else f"{row['us']:.1f}"
        loss = "" if row["us"] is None else f"{100 * (row['us'] / row['best_us'] - 1):+.1f} %"
        shape = f"{row['ranks']}/{row['nodes']}"
        table.append((row["op"], shape, row["bytes"], row["chosen"], spent, row["best"], f"{row['best_us']:.1f}", loss))
    head = ("op", "ranks/nodes", "bytes", "rules", "us", "best", "us", "loss")
    show("\n".join(columns(table, head)) + "\n")
