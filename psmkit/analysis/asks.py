"""What to run next where a report leaves something open: logs to add, processes to look into, settings for another run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from psmkit.analysis.facts import outside, recorded
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.naming import spans_of, spans_text
from psmkit.analysis.inference import proof, standing
from psmkit.analysis.inference.afterwards import RECORDER, ended
from psmkit.model import Ask, Coverage, Run, Suspect, Verdict
from psmkit.model.wording import LACKS, plural

__all__ = ["asks"]

_FILE = "NCCL_DEBUG_FILE"
#: How the setting that decides about a suspect does so.
_DECIDES = {
    "NCCL_DEBUG_SUBSYS": "the settings of this run may hide the step; these print it",
    "NCCL_DEBUG_TIMESTAMP_LEVELS": "time stamps show whether the others waited, or whether the log was cut",
    _FILE: "with a file for each process the end of one log is not hidden behind the lines of another",
}
_ONE_OUTPUT = "this release prints no time stamps, so only one output for all ranks shows which of them prints later"
_ALIVE = "while the processes still run"
_COMMAND = "YOUR_COMMAND"
_MOST_PIDS = 8
_MOST_FILES = 8


def asks(job: Job, runs: Sequence[Run], coverage: Coverage) -> tuple[Ask, ...]:
    """The commands that may decide what the report leaves open, the most telling first; none where nothing is open."""
    worst = max(runs, key=lambda run: (run.verdict.badness, run.confidence), default=None)
    if worst is None:
        return tuple(_settings(job, None, (), coverage))
    if worst.verdict not in (Verdict.INCONCLUSIVE, Verdict.HUNG):
        return ()
    if worst.verdict is Verdict.HUNG and worst.culprits:
        return ()
    suspects = [s for s in worst.suspects if s.setting]
    return (
        *_dumps(job, worst),
        *_looks(job, worst),
        *(() if suspects or recorded.silent(job, worst.index) else _logs(coverage, worst)),
        *_processes(job, worst),
        *_settings(job, worst, suspects, coverage),
    )


def _dumps(job: Job, run: Run) -> Iterator[Ask]:
    """Files of torch's flight recorder that the log names and that were not given."""
    given = {item.path.rpartition("/")[2] for item in getattr(job.scan, "foreign", ())}
    written = dict.fromkeys(
        str(event.fields["path"])
        for event in job.events("torch.dump.written")
        if job.run_of_event(event) == run.index and "path" in event.fields
    )
    paths = [path for path in written if path.rpartition("/")[2] not in given]
    if paths:
        names = [shlex.quote(path) for path in paths[:_MOST_FILES]]
        more = " ..." if len(paths) > len(names) else ""
        yield Ask(
            "read",
            " ".join(["psmkit analyze", "LOGS", *names]) + more,
            "torch wrote these dumps: they show the last collective that each rank called",
        )


def _looks(job: Job, run: Run) -> Iterator[Ask]:
    """A second look at processes of which stacks were given, and that one look does not decide."""
    if recorded.over(job, run.index):
        return
    if run.verdict is Verdict.INCONCLUSIVE and any(not stand.moved for stand in standing.stands(job)):
        yield Ask(
            "inspect",
            "psmkit inspect --all -o SECOND_LOOK && psmkit analyze FIRST_LOOK SECOND_LOOK",
            "two looks show whether a process goes on or stays where it is",
            f"{_ALIVE}, at least a minute after the first look",
        )


def _logs(coverage: Coverage, run: Run) -> Iterator[Ask]:
    """The logs that were not given, or the rest of the log."""
    if coverage.missing_ranks and run.ranks_seen:
        missing = coverage.missing_ranks
        yield Ask(
            "read",
            "psmkit analyze LOGS LOGS_OF_THE_OTHER_RANKS",
            f"the {plural(len(missing), 'log')} of {spans_text(spans_of(missing))} {plural(len(missing), 'was', 'were')} not given",
        )
        return
    lacks = next((note.removeprefix(LACKS) for note in coverage.notes if note.startswith(LACKS)), "")
    if lacks.startswith(("the end of the log", "the rest of the logs")):
        yield Ask("read", "psmkit analyze WHOLE_LOG", f"the input lacks {lacks.partition('. If nothing')[0]}")


def _processes(job: Job, run: Run) -> Iterator[Ask]:
    """Processes to look into, unless the log shows that they ended."""
    if ended(job, run.index) or proof.of(job, run.index).failed or proof.done(job, run.index) or standing.stands(job):
        return
    if run.suspects:
        pids = {s.pid for s in run.suspects if s.pid is not None}
        hosts = sorted({s.host for s in run.suspects if s.host is not None})
        where = f" on {hosts[0]}" if len(hosts) == 1 else ""
        if pids and len(pids) <= _MOST_PIDS and len(hosts) <= 1:
            yield Ask(
                "inspect",
                f"psmkit inspect {' '.join(map(str, sorted(pids)))}",
                f"the stacks show whether {plural(len(pids), 'this process still owes', 'these processes still owe')} the step, or went on and "
                f"{plural(len(pids), 'its log was', 'their logs were')} cut",
                f"{_ALIVE}{where}",
            )
            return
    info = job.runs[run.index]
    if info.procs:
        yield Ask(
            "inspect",
            "psmkit inspect --all",
            "the stacks show where each process waits; one that waits elsewhere than the others is the suspect",
            f"{_ALIVE}, on {'each host' if len(run.hosts) != 1 else run.hosts[0]}",
        )


def _settings(job: Job, run: Run | None, suspects: Sequence[Suspect], coverage: Coverage) -> Iterator[Ask]:
    """The environment for another run."""
    if run is not None and recorded.silent(job, run.index) is not None:
        yield from _of_silent(job, run)
        return
    chosen = dict(suspect.setting.split("=", 1) for suspect in suspects if "=" in suspect.setting)
    environment = {
        name: chosen.get(name, value) if name == _FILE else value for name, value in coverage.rerun_with.items()
    }
    environment |= {name: value for name, value in chosen.items() if name not in environment}
    why = [
        f"{name}={value} decides: {_ONE_OUTPUT if value == '/dev/stdout' else _DECIDES.get(name, 'it shows the step')}"
        for name, value in chosen.items()
    ]
    if not chosen and environment:
        hidden = coverage.missing_subsystems
        why = [
            "this adds the output of NCCL that this run lacks"
            + (f" ({', '.join(hidden)})" if hidden else "")
            + ", with time stamps and a file for each process"
        ]
    if run is not None and run.index in outside.runs_of(job, "torch."):
        environment |= RECORDER
        why.append("torch's flight recorder shows the last collective of each rank")
    if environment:
        line = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
        yield Ask("rerun", f"{line} {_COMMAND}", "; ".join(dict.fromkeys(why)), "in another run")


def _of_silent(job: Job, run: Run) -> Iterator[Ask]:
    """Another recording of a command that printed nothing of NCCL. The settings of a complete log were there, unless the user had others."""
    if recorded.kept(job, run.index):
        why = "your NCCL_DEBUG stayed in this run: without it psmkit record sets what a complete log needs"
        yield Ask("rerun", f"env -u NCCL_DEBUG psmkit record -- {_COMMAND}", why, "in another run")
        return
    yield Ask(
        "rerun",
        f"psmkit record -- {_COMMAND}",
        "psmkit record sets what complete logs need, so the command did not use NCCL, or starts its ranks where the settings do not reach "
        "them (another host, a container, a cleared environment), or has an NCCL built in that prints nothing: give the command that starts "
        "the ranks themselves",
        "in another run",
    )
