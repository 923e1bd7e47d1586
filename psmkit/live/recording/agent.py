"""The agent of ``psmkit record``: starts the command, passes its output on, watches, takes evidence when something happens, and packs."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from psmkit.live import ras
from psmkit.live.recording import archive, child, evidence, rest, team
from psmkit.live.recording.journal import REQUESTS, Journal, signal_name
from psmkit.live.recording.layout import SUFFIX, Layout, RecordError, archive_name
from psmkit.live.recording.settings import INSIDE, make
from psmkit.live.recording.watch import RANK_NAMES, Quiet, Seen, Watch, number_in, short_host

__all__ = ["Options", "leave", "record"]

_OCCASIONS = 3  # times that evidence is taken of one job
_DRAIN = 1.0  # seconds for output of processes that outlive the command
_GRACE = 3.0  # seconds from the request to end to the kill
_GATHER = 5.0  # seconds for agents of the same launcher to come
_UNKNOWN = 10.0  # seconds that other ranks live on after an end without a known status
_TICK = 0.25
_PACKER = 60.0
_HELD = 20.0  # seconds that the end of a rank is kept from the launcher while evidence of the others is taken


@dataclass(frozen=True, slots=True)
class Options:
    """How to record.

    Args:
        name: of the archive, without its suffix; None: one from launcher, host and time.
        stall: seconds without progress that count as a hang; None: never.
        deaf: output of the command counts as no progress.
        end: end the job when it hangs.
        torch: set up PyTorch's flight recorder.
        profiler: the path of the profiler plugin, None: do not load it.
        verbose: print the settings and what is taken.
        quiet: print nothing.
        version: of psmkit.
    """

    name: str | None = None
    stall: float | None = 300.0
    deaf: bool = False
    end: bool = False
    torch: bool = True
    profiler: str | None = None
    verbose: bool = False
    quiet: bool = False
    version: str = ""


def record(command: Sequence[str], options: Options, environment: Mapping[str, str] | None = None) -> int:
    """Run a command and record it. Returns its exit status, or minus the signal that ended it.

    Raises:
        RecordError: the folder cannot be written, or the command cannot be started.
    """
    env = dict(os.environ if environment is None else environment)
    if env.get(INSIDE):  # an agent above this one records already
        _replace(command, env)
    return _Agent(list(command), options, env).run()


def leave(code: int) -> NoReturn:
    """End as the command did, also by a signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core is the command's
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
        time.sleep(1)
    os._exit(code if code >= 0 else 128 - code)


def _replace(command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    try:
        os.execvpe(command[0], list(command), dict(env))
    except OSError as error:
        raise RecordError(f"cannot run {command[0]}: {(error.strerror or str(error)).lower()}") from None


def _short(path: Path) -> str:
    """A path as a user would type it here."""
    with contextlib.suppress(OSError, ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


class _Agent:
    def __init__(self, command: list[str], options: Options, env: dict[str, str]) -> None:
        self.command, self.options, self.env = command, options, env
        self.team = team.team_of(env)
        host = short_host()
        name = options.name
        if name is None:
            name = (
                f"record-{self.team.key}"
                if self.team
                else f"record-{host}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
            )
        self.layout = Layout(team.folder_of(name, self.team, host, SUFFIX))
        self.leads, self.port = True, 0
        self.begun = False
        self.signals: list[int] = []
        self.interrupts = 0
        self.work: threading.Thread | None = None
        self.after: list[Callable[[], None]] = []
        self.occasions = 0
        self.kill_at: float | None = None
        self.deaths = 0
        self.suspect: tuple[float, Seen] | None = None
        self.hurry = threading.Event()
        self.looks = rest.Looks()

    # ---- from start to end ----

    def run(self) -> int:
        self._make()
        settings = make(self.layout, self.port, self.env, torch=self.options.torch, profiler=self.options.profiler)
        self.journal = Journal(self.layout, self.command, settings, self.options.version)
        self.watch = Watch(self.layout, self.options.stall)
        self._explain()
        self.copy = self.layout.output / f"{os.getpid()}.txt"
        handled = self._handle_signals()
        try:
            self._begin(settings.environment)
            with selectors.DefaultSelector() as self.selector:
                self._loop()
            self._wait_for_work()
            code = self.child.process.wait()
        finally:
            if self.begun:
                self.child.close()
            self._restore(handled)
        # From here on nothing may stop the agent but SIGKILL: the command has ended.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            self._finish(code)
        finally:
            self.watch.close()
            for number in signal.sigpending() & {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}:
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return code

    def _begin(self, environment: dict[str, str]) -> None:
        try:
            self.child = child.start(self.command, environment, self.copy)
        except RecordError:
            self._abandon()
            raise
        self.begun = True
        self.member = team.enter(self.layout, self.child.pid, number_in(self.env, RANK_NAMES))
        self.watch.adopt(self.child.pid, self.command, environment)
        if self.team is not None:
            self.journal.team = {"key": self.team.key, "size": self.team.size}
        self.journal.event("start", "the command was started")

    def _make(self) -> None:
        root = self.layout.root
        if self.team is None and (root.exists() or any(archive_name(root, kind).exists() for kind in ("zst", "gz"))):
            raise RecordError(
                f"{root.name} or its archive exists already in {root.parent.absolute()}: choose another name with -o NAME"
            )
        number = 1
        while self.team is not None and any(archive_name(self.layout.root, kind).exists() for kind in ("zst", "gz")):
            number += 1  # an earlier run of the same name; all agents of this one count alike
            self.layout = Layout(root.with_name(f"{root.name.removesuffix(SUFFIX)}-{number}{SUFFIX}"))
        self.layout.make()
        self.port = ras.free_port()
        if self.team is not None:
            self.leads, self.port = team.join(self.layout, self.team, self.port)

    def _abandon(self) -> None:
        """Remove the folder of a command that did not start, unless others use it."""
        import shutil

        if self.team is None:
            shutil.rmtree(self.layout.root, ignore_errors=True)

    def _explain(self) -> None:
        settings = self.journal.settings
        if self.options.verbose:
            for name, value in settings.added.items():
                self._say(f"set {name}={value}")
        if self.leads:
            for name, (mine, ours) in settings.kept.items():
                self._say(f"{name}={mine} is your setting and stays; psmkit would set {ours}")

    def _say(self, text: str) -> None:
        if not self.options.quiet:
            with contextlib.suppress(OSError):
                os.write(2, f"psmkit record: {text}\n".encode(errors="backslashreplace"))

    # ---- signals ----

    def _handle_signals(self) -> dict[int, Any]:
        self._wake, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        before: dict[int, Any] = {-1: signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGQUIT):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup does, and a shell for what it starts with &
                before[number] = signal.signal(number, lambda n, _frame: self.signals.append(n))
        return before

    def _restore(self, before: dict[int, Any]) -> None:
        signal.set_wakeup_fd(before.pop(-1))
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(self._wake)
        os.close(self._woken)

    def _answer_signals(self) -> None:
        while self.signals:
            number = self.signals.pop(0)
            if number == signal.SIGWINCH:
                self.child.resize()
            elif number == signal.SIGINT:
                self._interrupted()
            else:
                self._stopped(f"{signal_name(number)} arrived, and the command got it", "terminated")
                self.child.send(number)

    def _stopped(self, text: str, kind: str) -> None:
        if self.journal.stopped is None:
            self.journal.stop(self.watch, self.copy)
            if self.leads:
                evidence.keep_records(self.layout, self.watch)
            self.member.stopped = self.journal.stopped
            team.save(self.layout, self.member)
        self.journal.event(kind, text)
        if self.leads:
            self.journal.save(self.watch)
        if self.team is not None:
            self._leave_a_packer()

    def _leave_a_packer(self) -> None:
        """Start a process that packs when all agents are gone: the launcher may kill them soon."""
        with contextlib.suppress(OSError):
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "psmkit",
                    "record",
                    "--salvage",
                    str(self.layout.root),
                    "--wait",
                    f"{_PACKER:g}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self.env,
                start_new_session=True,
            )

    def _interrupted(self) -> None:
        """The first Ctrl-C takes evidence and is passed on then, the second ends the job, the third kills it."""
        self.interrupts += 1
        if self.interrupts == 1:
            self._say("taking evidence, then Ctrl-C reaches the command; a second Ctrl-C ends it now")
            self._take("interrupt", "Ctrl-C: the user ended the job", self._pass_interrupt)
        elif self.interrupts == 2:
            self.hurry.set()
            self._stopped("a second Ctrl-C: the job was ended", "interrupt")
            self.child.send(signal.SIGTERM)
            self.kill_at = time.monotonic() + _GRACE
        else:
            self.kill_at = time.monotonic()

    def _pass_interrupt(self) -> None:
        self._stopped("Ctrl-C: the user ended the job, after its evidence was taken", "interrupt")
        self.child.send(signal.SIGINT)

    def _kill(self) -> None:
        self.kill_at = None
        # All are stopped before the first ends, so that none prints that it lost another.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for one in self.watch.living:
                with contextlib.suppress(OSError):
                    os.kill(one.pid, number)
            self.child.send(number)

    # ---- the loop ----

    def _loop(self) -> None:
        for stream in self.child.streams:
            self.selector.register(stream.source, selectors.EVENT_READ, stream)
        self.selector.register(self._wake, selectors.EVENT_READ, "wake")
        if self.child.pidfd >= 0:
            self.selector.register(self.child.pidfd, selectors.EVENT_READ, "child")
        if self.child.listens:
            self.selector.register(0, selectors.EVENT_READ, "keys")
        followed: dict[int, int] = {}  # pidfds of ranks, to notice an end at once
        due = time.monotonic()
        seen = 0  # the newest change among the agents
        over: float | None = None  # the time until which output is awaited after the end
        while True:
            now = time.monotonic()
            if self.signals:
                self._answer_signals()
            if self.kill_at is not None and now >= self.kill_at:
                self._kill()
            if self.team is not None and self.leads and (stamp := self._stamp()) != seen:
                seen, due = stamp, now
            if now >= due:
                begun = time.thread_time()
                self._look(now)
                self._follow(followed)
                pause = self.watch.pause(time.thread_time() - begun) if self.leads else _UNKNOWN
                due = time.monotonic() + pause
            if self.work is not None and not self.work.is_alive():
                self._worked()
            if over is None and self.child.process.poll() is not None:
                over = now + _DRAIN
                if self.child.pidfd >= 0:
                    self.selector.unregister(self.child.pidfd)
                self._child_ended()
            if (
                over is not None
                and (not self.child.streams or now >= over)
                and self.work is None
                and self._may_leave(now, over)
            ):
                return
            wait = max(0.0, due - now)
            if self.team is not None or self.child.pidfd < 0:  # nothing wakes the agent where others write files
                wait = min(wait, 2 * _TICK)
            if self.child.waits or self.work is not None or over is not None or self.kill_at is not None:
                wait = min(wait, _TICK / 5)
            for key, _ in self.selector.select(wait):
                self._serve(key, followed)
            self.child.settle(time.monotonic())

    def _stamp(self) -> int:
        with contextlib.suppress(OSError):
            return self.layout.members.stat().st_mtime_ns
        return 0

    def _serve(self, key: selectors.SelectorKey, followed: dict[int, int]) -> None:
        if key.data == "wake":
            with contextlib.suppress(BlockingIOError):
                os.read(key.fd, 64)
        elif key.data == "keys":
            self.child.type()
            if not self.child.listens:
                self.selector.unregister(0)
        elif isinstance(key.data, child.Stream):
            source = key.data.source
            if not self.child.pump(key.data):
                self.selector.unregister(source)
        elif isinstance(key.data, Seen):
            self.selector.unregister(key.fd)
            followed.pop(key.fd, None)
            self._ended(self.watch.reap())

    def _follow(self, followed: dict[int, int]) -> None:
        if not self.leads or self.work is not None:
            return
        wanted = {
            one.pidfd: one for one in self.watch.ranks(living=True) if one.pidfd >= 0 and one.pid != self.child.pid
        }
        for fd in [fd for fd in followed if fd not in wanted or wanted[fd].pid != followed[fd]]:
            with contextlib.suppress(KeyError, ValueError, OSError):
                self.selector.unregister(fd)
            del followed[fd]
        for fd, one in wanted.items():
            if fd not in followed:
                self.selector.register(fd, selectors.EVENT_READ, one)
                followed[fd] = one.pid

    def _look(self, now: float) -> None:
        self.journal.breathe()
        if not self.leads or self.work is not None:
            return
        self._admit()
        self._ended(self.watch.look())
        quiet = self.watch.moved(0 if self.options.deaf else self.child.bytes, now)
        if quiet is not None:
            self.journal.quiets.append(quiet)
            self.looks.begin()
            if self.occasions < _OCCASIONS:
                self._say(f"nothing moved for {quiet.seconds:.0f} s; taking evidence")
            self._take("hang", f"no line and no record for {quiet.seconds:.0f} s", lambda: None)
        elif self.options.end and self.watch.quiet is not None and self.kill_at is None:
            self._end_if_hung(self.watch.quiet)
        elif self.suspect is not None and time.time() - self.suspect[0] > _UNKNOWN:
            one, self.suspect = self.suspect[1], None
            if self.watch.ranks(living=True):
                self._death(one, "ended; its exit status is unknown, and other ranks go on")
        elsewhere = evidence.elsewhere(self.layout, self.watch)
        if elsewhere != self.journal.elsewhere or not self.journal.layout.manifest.exists():
            self.journal.elsewhere = elsewhere
            self.journal.save(self.watch)

    def _admit(self) -> None:
        """Take over what the other agents of this host say of their commands."""
        if self.team is None:
            return
        for member in team.members(self.layout):
            self.watch.roots.add(member.child)
            seen = self.watch.seen.get(member.child)
            if seen is not None and member.code is not None:
                seen.code = member.code

    def _end_if_hung(self, quiet: Quiet) -> None:
        """End a job whose hang is certain; else look again at those that use CPU time, or say once why it goes on."""
        quiet.resting = self.looks.resting()
        doubt = rest.doubt(quiet, self.watch.seen)
        if doubt is None:
            self._hung()
            return
        kind, why = doubt
        again = self.looks.due(quiet.busy, time.monotonic()) if kind == "busy" else None
        if again:
            self._look_again(sorted(quiet.busy))
        elif again is None and kind not in self.looks.said:
            self.looks.said.add(kind)
            self._say(f"not ended, despite --end: {why}")
            self.journal.event("spared", f"not ended, despite --end: {why}")
            self.journal.save(self.watch)

    def _look_again(self, pids: list[int]) -> None:
        name = f"{self.occasions}-{1 + len(list(self.layout.stacks.glob(f'{self.occasions}-*')))}"
        self.work = threading.Thread(
            target=evidence.look_again, args=(self.layout, self.journal, pids, name, self.looks), name="look"
        )
        self.work.start()

    def _hung(self) -> None:
        self._stopped("the job was ended because it hung (--end)", "terminated")
        self.child.send(signal.SIGTERM)
        self.kill_at = time.monotonic() + _GRACE

    def _ended(self, ended: list[Seen]) -> None:
        if ended and self.journal.stopped is None:  # the newest state: who else is there
            self._admit()
            ended = [*ended, *self.watch.look()]
        ranks = {id(one) for one in self.watch.ranks()}
        for one in ended:
            if one.pid == self.child.pid and self.child.process.poll() is not None:
                one.code = self.child.process.returncode
            if id(one) not in ranks or self.journal.stopped is not None:
                continue
            if one.code and -one.code not in REQUESTS:
                how = f"was ended by {signal_name(-one.code)}" if one.code < 0 else f"ended with status {one.code}"
                if self.watch.ranks(living=True):
                    self._death(one, how)
                else:
                    self._taken()
            elif one.code is None and self.suspect is None:
                self.suspect = time.time(), one

    def _death(self, one: Seen, how: str) -> None:
        self.deaths += 1
        if self.deaths > 1:  # the launcher ends the others now
            return
        who = f"rank {one.rank}" if one.rank is not None else f"process {one.pid}"
        self._say(f"{who} {how}; taking evidence of the others")
        self._take("death", f"{who} (process {one.host}:{one.pid}) {how} while others lived", self._taken)

    def _taken(self) -> None:
        with contextlib.suppress(OSError):
            self.layout.taken.touch()

    def _child_ended(self) -> None:
        code = self.child.process.returncode
        seen = self.watch.seen.get(self.child.pid)
        self.member.code = code
        team.save(self.layout, self.member)
        if seen is not None:
            seen.code = code
            if self.work is None and self.leads:
                self._ended(self.watch.reap())

    # ---- evidence, in a thread: output passes through meanwhile ----

    def _take(self, kind: str, text: str, after: Callable[[], None]) -> None:
        self.journal.event(kind, text)
        if self.work is not None or self.occasions >= _OCCASIONS or not self.leads:
            self.journal.missed(kind, "evidence was taken often enough" if self.leads else "another agent takes it")
            if self.work is None:
                after()
            else:
                self.after.append(after)
            return
        self.journal.save(self.watch)
        self.occasions += 1
        number = self.occasions
        self.after.append(after)
        if kind != "hang":  # the newest state; a hang was seen by a look just now
            self.watch.look()

        def work() -> None:
            evidence.take(
                self.layout,
                self.watch,
                self.journal,
                self.port,
                number=number,
                stop=self.hurry.is_set,
                seen=self.looks.note,
            )
            if kind == "hang":
                evidence.surroundings(self.layout, self.watch, self.journal)
                self.journal.save(self.watch)
                try:
                    self._say(f"wrote {_short(archive.pack(self.layout.root))}; the job goes on")
                except RecordError as error:
                    self.journal.missed("archive", str(error))

        self.work = threading.Thread(target=work, name="evidence")
        self.work.start()

    def _worked(self) -> None:
        if self.work is not None:
            self.work.join()
            self.work = None
        waiting, self.after = self.after, []
        self.journal.save(self.watch)
        for after in waiting:
            after()

    def _wait_for_work(self) -> None:
        if self.work is not None:
            self._worked()

    # ---- the end ----

    def _may_leave(self, now: float, over: float) -> bool:
        """Whether this agent may leave the others: a leader whose command ended well stays to watch; the end of another waits for evidence."""
        code = self.child.process.returncode
        if self.team is None or self.journal.stopped is not None:
            return True
        if code != 0:
            held = now - over < _HELD and not self.layout.taken.exists()
            return self.leads or not held or not team.leader_lives(self.layout)
        if not self.leads:
            return True
        came = len(team.members(self.layout))
        expected = self.team.size or 1
        early = time.time() - self.journal.started < _GATHER and came < expected
        return not early and not team.others_live(self.layout)

    def _finish(self, code: int) -> None:
        journal, watch = self.journal, self.watch
        if self.leads:
            self._ended_quietly()
            evidence.surroundings(self.layout, watch, journal)
            how = signal_name(-code) if code < 0 else f"status {code}"
            journal.event("end", f"the command ended with {how}")
            journal.ended = {
                "time": time.time(),
                "status": code if code >= 0 else None,
                "signal": -code if code < 0 else None,
            }
            if self.child.trouble:
                journal.missed("output", f"the copy is not complete: {self.child.trouble}")
            journal.save(watch)
        self.member.code, self.member.ended = code, time.time()
        if journal.trouble:
            self._say(f"{self.layout.root}: {journal.trouble}; the recording is not complete")
        try:
            with team.leaving(self.layout):
                team.save(self.layout, self.member)
                if team.others_live(self.layout):
                    if code:
                        self._leave_a_packer()
                    return
                root: Path = self.layout.root
                archive.finish(root, archive.settle(root))
                target = archive.close(root)
        except RecordError as error:
            self._say(str(error))
        except OSError as error:
            self._say(
                f"{self.layout.root}: {(error.strerror or str(error)).lower()}; the evidence stays in this folder"
            )
        else:
            self._say(f"wrote {_short(target)}: psmkit analyze {_short(target)}")

    def _ended_quietly(self) -> None:
        """A last look at the processes, after the command has ended."""
        self._admit()
        self.watch.look()
