"""A lint as text and as JSON, schema ``psmkit.plan-lint/1``."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from psmkit.model.wording import counted, plural
from psmkit.plan.cut import Wait
from psmkit.plan.lint import P2P_BYTES, Answer, Lint, Need
from psmkit.plan.releases import version
from psmkit.report.layout import Page, Span, ranges
from psmkit.report.ranktable import fit

__all__ = ["SCHEMA", "layout", "render", "wait_text"]

SCHEMA = "psmkit.plan-lint/1"
_ROWS = 8
_STYLES = {
    Answer.SAFE: "healthy",
    Answer.HANGS: "hung",
    Answer.OVERWRITES: "failed",
    Answer.UNDECIDED: "inconclusive",
}


def _bytes(n: int) -> str:
    for scale, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if n and n % (1 << scale) == 0:
            return f"{n >> scale} {unit}"
    return f"{n:,} bytes"


def wait_text(wait: Wait) -> str:
    """``rank 0, plan 2, channel 1: send 812 to 3, whose recv is in plan 3 of rank 3``."""
    where = f"rank {wait.rank}, plan {wait.plan}"
    if wait.kind == "fifo":
        return f"{where}: its host waits for {wait.needs:,} bytes of room in the work FIFO, {wait.room:,} are free"
    where += f", channel {wait.channel}"
    if wait.kind == "ranks" or wait.func is None:
        return f"{where}: {wait.func.label if wait.func else 'a collective'} waits for the other ranks"
    way, other = ("to", "recv") if wait.func.label == "send" else ("from", "send")
    what = f"{where}: {wait.func.label} {wait.task} {way} {wait.peer}"
    if wait.mate_plan is None:
        return f"{what}, which has no such {other}"
    return f"{what}, whose {other} is in plan {wait.mate_plan} of rank {wait.peer}"


def _config(lint: Lint, assumed: Iterable[str]) -> str:
    config, guessed = lint.config, set(assumed)

    def told(name: str, text: str) -> str:
        return f"{text} (assumed)" if name in guessed else text

    parts = [
        f"NCCL {version(config.release)} ({lint.release.name})",
        f"{counted(config.ranks, 'rank')} on {counted(config.nodes, 'node')}",
        told(
            "p2p_channels",
            f"{counted(config.p2p_channels, 'p2p channel')}, {config.p2p_channels_per_peer} for each peer",
        ),
        told("work_fifo_bytes", f"a work FIFO of {_bytes(config.work_fifo_bytes)}"),
        told("p2p_chunk_bytes", f"chunks of {_bytes(config.p2p_chunk_bytes or 128 << 10)}"),
    ]
    return "; ".join(parts)


def layout(lint: Lint, width: int, *, assumed: Iterable[str] = (), verbose: bool = False) -> Page:
    """The page, with at most ``width`` characters in a line; ``assumed`` names fields of the configuration that nobody gave."""
    page = Page(max(width, 60))
    word = lint.answer.value
    page.wrap(lint.why, "heading", hang="  ", lead=Span(f"{word}: ", _STYLES[lint.answer]))
    page.wrap(_config(lint, assumed), "dim", indent="  ", hang="  ")
    for note in lint.notes:
        page.wrap(note, indent="  ", hang="    ")
    _needs(page, lint, verbose)
    _largest(page, lint)
    _waits(page, lint, verbose)
    if lint.changes:
        page.blank()
        page.add(Span("What makes it safe, each shown by a run", "heading"))
        for number, change in enumerate(lint.changes, 1):
            page.wrap(change.text, indent="  ", hang="     ", lead=Span(f"{number}. ", "code"))
    return page


def _needs(page: Page, lint: Lint, verbose: bool) -> None:
    alike: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    for need in lint.needs:
        alike[_numbers(need)].append(need.rank)
    rows = [
        [ranges(ranks), f"{sends:,}", str(group), str(plans), f"{nbytes:,}"]
        for (nbytes, plans, sends, group), ranks in sorted(alike.items(), reverse=True)
    ]
    if not rows:
        return
    page.blank()
    page.add(Span("The largest group of each rank", "heading"))
    shown = rows if verbose else rows[:_ROWS]
    heads = ["ranks", "sends and recvs", "group", "plans", "bytes of work FIFO"]
    for number, line in enumerate(fit(heads, shown, page.width - 2)):
        page.add(Span(f"  {line}", "" if number else "dim"))
    if len(rows) > len(shown):
        page.add(Span(f"  … {counted(len(rows) - len(shown), 'more row')} (-v shows all)", "dim"))


def _numbers(need: Need) -> tuple[int, int, int, int]:
    return need.fifo_bytes, need.plans, need.operations, need.group


def _largest(page: Page, lint: Lint) -> None:
    new, always = lint.largest.fifo_new, lint.largest.fifo_always
    page.blank()
    page.add(Span("The limit of the work FIFO", "heading"))
    if lint.release.event_room:
        text = (
            f"{P2P_BYTES} bytes for each send, recv, or one of each between the same round of ranks: {new // P2P_BYTES:,} of them "
            f"as the first group of a communicator, {always // P2P_BYTES:,} behind any other groups."
        )
    else:
        text = (
            f"{P2P_BYTES} bytes for each send, recv, or one of each between the same round of ranks: {new // P2P_BYTES:,} of them "
            "in all groups that are launched before the first kernel ends."
        )
    page.wrap(text, indent="  ", hang="  ")
    if lint.largest.messages is not None:
        bound = "one more is not" if lint.largest.exact else "more were not tried"
        page.wrap(
            f"Of this shape, {counted(lint.largest.messages, 'message')} from a rank to another in a group "
            f"{plural(lint.largest.messages, 'is', 'are')} safe; {bound}.",
            indent="  ",
            hang="  ",
        )


def _waits(page: Page, lint: Lint, verbose: bool) -> None:
    if not lint.waits:
        return
    page.blank()
    if lint.cycle:
        page.add(Span("A circle: each waits for the next, and the last for the first", "heading"))
        shown: tuple[Wait, ...] = lint.cycle
    else:
        page.add(Span("Who waits", "heading"))
        shown = lint.waits if verbose else lint.waits[:_ROWS]
    for wait in shown:
        page.wrap(wait_text(wait), indent="  ", hang="    ")
    left = len(lint.waits) - len(shown)
    if left > 0 and not verbose:
        page.add(Span(f"  … {counted(left, 'more wait')} (-v shows all)", "dim"))
    elif lint.cycle and verbose:
        page.blank()
        page.add(Span("All that waits", "heading"))
        for wait in lint.waits:
            page.wrap(wait_text(wait), indent="  ", hang="    ")


def _wait(wait: Wait) -> dict[str, Any]:
    return {**asdict(wait), "func": wait.func.label if wait.func else None, "text": wait_text(wait)}


def _rows(lint: Lint) -> Iterator[dict[str, Any]]:
    for need in lint.needs:
        yield asdict(need)


def render(lint: Lint, *, assumed: Iterable[str] = ()) -> str:
    """The JSON text, in ASCII."""
    config = lint.config
    value = {
        "schema": SCHEMA,
        "answer": lint.answer.value,
        "why": lint.why,
        "proof": lint.proof,
        "notes": list(lint.notes),
        "config": {
            "release": version(config.release),
            "scheduler": lint.release.name,
            "ranks": config.ranks,
            "nodes": config.nodes,
            "p2p_channels": config.p2p_channels,
            "p2p_channels_per_peer": config.p2p_channels_per_peer,
            "work_fifo_bytes": config.work_fifo_bytes,
            "p2p_chunk_bytes": config.p2p_chunk_bytes or 128 << 10,
            "p2p_epochs": not config.mix_epochs,
            "assumed": sorted(assumed),
        },
        "largest": asdict(lint.largest),
        "ranks": list(_rows(lint)),
        "changes": [asdict(change) for change in lint.changes],
        "cycle": [_wait(wait) for wait in lint.cycle],
        "waits": [_wait(wait) for wait in lint.waits],
    }
    return json.dumps(value, indent=1, ensure_ascii=True, allow_nan=False) + "\n"
