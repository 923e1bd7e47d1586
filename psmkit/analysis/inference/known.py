"""Public issues that a line or a finding resembles, in their short form."""

from __future__ import annotations

import re

from psmkit.analysis.facts.job import Job
from psmkit.analysis.inference import faults
from psmkit.logparse.types import Event

__all__ = ["issue_of", "issue_of_text"]

#: What an issue is recognised by in a line, the most telling first. What takes more than one line is named by its own rule.
_TEXTS: tuple[tuple[str, str], ...] = (
    (r"attaching to shared memory segment .*No such file", "NVIDIA/nccl#2190"),
    (r"wrong magic|magic mismatch", "NVIDIA/nccl#1808"),
    (r"failed to extend /dev/shm|No space left on device", "NVIDIA/nccl#290"),
    (r"Too many open files", "NVIDIA/nccl#550"),
    (r"cuMemImportFromShareableHandle.*101|CUDA failure 101|Cuda failure 101", "NVIDIA/nccl#1647"),
    (r"cudaIpcOpenMemHandle.*invalid argument|invalid argument.*cudaIpcOpenMemHandle", "NVIDIA/nccl#842"),
    (r"ibv_dealloc_pd failed.*(?:busy|errno 16)", "sii-research/VCCL#36"),
    (r"deregister NET buffer handle .* failed", "ROCm/rocm-systems#6706"),
    (r"ncclProxyClientGetFd call to .* failed|ncclIpcSocketRecvMsg", "NVIDIA/nccl#2379"),
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), issue) for pattern, issue in _TEXTS)


def issue_of_text(text: str) -> str | None:
    """The issue that a line's text is known from."""
    return next((issue for pattern, issue in _COMPILED if pattern.search(text)), None)


def issue_of(job: Job, event: Event, text: str | None = None) -> str | None:
    """The issue that an event is known from: its catalogue entry's first, else by its words."""
    entry = faults.message(job, event.name)
    issues = tuple(getattr(entry, "known_issues", None) or ())
    if issues:
        return str(issues[0])
    return issue_of_text(text if text is not None else faults.body(job, event))
