"""``psmkit watch``: Follow the logs of a running job, and report when its verdict changes."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import click

from psmkit.cli.command import Command
from psmkit.cli.language import lang_option, spoken
from psmkit.cli.output import coloured, show, show_page, width
from psmkit.cli.screen import Screen
from psmkit.model.errors import InputError

if TYPE_CHECKING:
    from psmkit.report.language import Words
    from psmkit.watch.loop import Watch
    from psmkit.watch.state import Sight

__all__ = ["command"]

_LEVELS = ("error", "warning", "inconclusive", "never")
_REDRAWN = 1.0  # seconds between two pages of the screen
NOTHING = 2  # exit status: nothing was judged


@click.command(
    "watch",
    cls=Command,
    examples=(
        "psmkit watch logs/                              # all ranks, also those that start later",
        "psmkit watch 'logs/rank-*.log' train.out --settle 60",
        "psmkit watch logs/ --exec ./page-me.sh          # it finds the verdict in PSMKIT_VERDICT, PSMKIT_SENTENCE, ...",
        "psmkit watch logs/ --jsonl | jq .verdict",
    ),
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--settle",
    type=click.FloatRange(0.0),
    default=10.0,
    help="Report a hang when nothing has refuted it for so many seconds: a rank that is only late looks the same.  [10]",
)
@click.option("--for", "seconds", metavar="SECONDS", type=click.FloatRange(0.0), help="End after so long.")
@click.option("--jsonl", is_flag=True, help="Write a line of JSON for each change, and one at the end.")
@click.option(
    "--exec",
    "wanted",
    metavar="COMMAND",
    help="Run this on each change, without a shell; PSMKIT_VERDICT, PSMKIT_SENTENCE and others say what changed.",
)
@click.option(
    "--fail-on",
    type=click.Choice(_LEVELS),
    default="error",
    help="At the end, exit with status 1 at this level or a worse one.  [error]",
)
@click.option(
    "--catalogue", "catalogues", metavar="MY.toml", multiple=True, help="Add the messages of this file. Repeatable."
)
@click.option("--no-inspect", is_flag=True, help="Do not look into processes of this host.")
@click.option("--evidence", metavar="DIR", help="Keep the inspections of processes there.  [a temporary folder]")
@lang_option
def command(
    paths: tuple[str, ...],
    settle: float,
    seconds: float | None,
    jsonl: bool,
    wanted: str | None,
    fail_on: str,
    catalogues: tuple[str, ...],
    no_inspect: bool,
    evidence: str | None,
    lang: str | None,
) -> int:
    """Follow the logs of a running job and keep the verdict on it current.

    PATH is a file, a glob or a folder; it need not exist yet. Files may grow, rotate, be truncated, removed, and appear late. The verdict
    is the one of `psmkit analyze` on the same bytes. On a terminal it is a screen with verdict, who, proof, do this, files and rates;
    elsewhere each change is printed. When a process of this host is to blame for a hang, `psmkit inspect` looks into it, and what it sees counts.

    Ctrl-C ends the watch with the last verdict. Exit status: 0 no finding at or above --fail-on; 1 there is one; 2 nothing could be judged.
    """
    from psmkit.cli import watch_page
    from psmkit.report.language import ENGLISH
    from psmkit.report.levels import Level, level_of
    from psmkit.watch.follow import Follower
    from psmkit.watch.local import Inspector
    from psmkit.watch.loop import Watch
    from psmkit.watch.state import State

    if "-" in paths:
        raise InputError("-", "standard input cannot be followed: `psmkit analyze -` reads it")
    follower = Follower(paths, catalogues)
    watch = Watch(follower, State(settle), None if no_inspect else Inspector(evidence))
    live = not jsonl and coloured(sys.stdout)
    words = ENGLISH if jsonl else spoken(lang)
    try:
        hook = _Hook(wanted, follower.say, quiet=live) if wanted is not None else None
        end = None if seconds is None else time.monotonic() + seconds
        with _stopping() as stopped:
            follower.stop = stopped
            _refuse(watch)
            if not live and not jsonl:
                show_page(watch_page.begun(follower, settle, width(sys.stdout), words))
                sys.stdout.flush()
            with Screen(live) as screen:
                _watch(watch, screen, hook, stopped, live=live, jsonl=jsonl, end=end, words=words)
            change = watch.last_turn()
            _report(watch, change, hook, live=live, jsonl=jsonl, words=words)
        if hook is not None:
            hook.finish()
        sight = watch.state.now
        _last(watch, live=live, jsonl=jsonl, words=words)
        if sight.report is None:
            return NOTHING
        return 1 if level_of(sight.report) >= Level[fail_on.upper()] else 0
    finally:
        watch.close()


def _refuse(watch: Watch) -> None:
    """End at once if a file that is named cannot be followed: it is compressed, or holds no text."""
    watch.follower.poll()
    watch.follower.prepare()
    named = [path for path in watch.follower.paths.paths if path in watch.follower.refused]
    if named:
        raise InputError(named[0], watch.follower.refused[named[0]])


def _watch(
    watch: Watch,
    screen: Screen,
    hook: _Hook | None,
    stopped: _Stopped,
    *,
    live: bool,
    jsonl: bool,
    end: float | None,
    words: Words,
) -> None:
    """Turn after turn, until the user has enough."""
    from psmkit.cli.watch_page import Rates, frame

    rates = Rates()
    drawn = -_REDRAWN
    while not stopped() and (end is None or time.monotonic() < end):
        change = watch.turn()
        if not live and not jsonl:
            _tell(watch, words)
        _report(watch, change, hook, live=live, jsonl=jsonl, words=words)
        if hook is not None:
            hook.poll()
        now = time.monotonic()
        if live and now - drawn >= _REDRAWN:
            rates.update(watch.follower.logs)
            columns, rows = shutil.get_terminal_size((width(sys.stdout), 24))
            screen.put(frame(watch, rates, max(columns, 40), rows, words))
            drawn = now
        pause = watch.pause if end is None else min(watch.pause, max(end - now, 0.0))
        stopped.wait(pause, watch.judge.pipe)


def _report(
    watch: Watch,
    change: tuple[Sight | None, Sight] | None,
    hook: _Hook | None,
    *,
    live: bool,
    jsonl: bool,
    words: Words,
) -> None:
    """Say what changed."""
    from psmkit.cli import watch_page

    if change is None:
        return
    before, sight = change
    if jsonl:
        show(json.dumps(watch_page.document("verdict", sight, before, watch.follower)) + "\n")
        watch.follower.news.clear()
    elif not live:
        show_page(watch_page.told(sight, before, width(sys.stdout), words))
    sys.stdout.flush()
    if hook is not None:
        hook.run(watch_page.environment(sight, before))


def _tell(watch: Watch, words: Words) -> None:
    """Say what became of files."""
    from psmkit.cli import watch_page

    if watch.follower.news:
        show_page(watch_page.fates(watch.follower.news, width(sys.stdout), words))
        sys.stdout.flush()
        watch.follower.news.clear()


def _last(watch: Watch, *, live: bool, jsonl: bool, words: Words) -> None:
    """The last verdict."""
    from psmkit.cli import watch_page

    sight = watch.state.now
    if jsonl:
        show(json.dumps(watch_page.document("end", sight, watch.state.reported, watch.follower)) + "\n")
    elif sight.report is None:
        raise InputError(", ".join(watch.follower.paths.paths), sight.told or watch.state.error or "no log appeared")
    elif live or sight.key != (watch.state.reported.key if watch.state.reported is not None else None):
        show_page(watch_page.told(sight, None, width(sys.stdout), words))


class _Stopped:
    """Whether the user has enough: SIGINT or SIGTERM came."""

    def __init__(self) -> None:
        self.now = False
        self.read, self.write = socket.socketpair()
        self.read.setblocking(False)
        self.write.setblocking(False)

    def __call__(self) -> bool:
        return self.now

    def wait(self, seconds: float, other: int) -> None:
        """Wait for a signal, or until ``other`` can be read."""
        ready = select.poll()  # with a thousand logs open, numbers are too large for select()
        for fd in (self.read.fileno(), other):
            if fd >= 0:
                ready.register(fd, select.POLLIN)
        if any(fd == self.read.fileno() for fd, _ in ready.poll(seconds * 1000)):
            with contextlib.suppress(BlockingIOError):
                self.read.recv(64)


@contextlib.contextmanager
def _stopping() -> Iterator[_Stopped]:
    """SIGINT and SIGTERM end the watch in good order. A second one ends the process as usual."""
    stopped = _Stopped()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, _frame: object) -> None:
        stopped.now = True
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, stop)
    woken = signal.set_wakeup_fd(stopped.write.fileno(), warn_on_full_buffer=False)
    try:
        yield stopped
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        stopped.read.close()
        stopped.write.close()


class _Hook:
    """The user's command. While it runs, only the newest change waits for it."""

    def __init__(self, command: str, say: Callable[[str], None], *, quiet: bool) -> None:
        """``say`` gets a message when the command fails. ``quiet``: drop its output, which would damage the screen.

        Raises:
            click.BadParameter: it cannot be run.
        """
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise click.BadParameter(f"{command!r}: {error}", param_hint="--exec") from None
        if not self._words or shutil.which(self._words[0]) is None:
            raise click.BadParameter(f"{command!r}: there is no such command", param_hint="--exec")
        self._command, self._say, self._quiet = command, say, quiet
        self._running: subprocess.Popen[bytes] | None = None
        self._waiting: Mapping[str, str] | None = None

    def run(self, values: Mapping[str, str]) -> None:
        """Run it with these variables."""
        self._waiting = values
        self.poll()

    def poll(self) -> None:
        """Begin what waits when the last one has ended."""
        if self._running is not None:
            status = self._running.poll()
            if status is None:
                return
            if status:
                self._say(f"{self._command} ended with status {status}")
        self._running = None
        if self._waiting is None:
            return
        values, self._waiting = self._waiting, None
        output = subprocess.DEVNULL if self._quiet else sys.stderr.fileno()
        try:
            self._running = subprocess.Popen(
                self._words,
                env={**os.environ, **values},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            self._say(f"cannot run {self._command}: {error.strerror}")

    def finish(self) -> None:
        """Wait for the last change to be told."""
        while self._running is not None or self._waiting is not None:
            if self._running is not None:
                self._running.wait()
            self.poll()
