"""Process numbers in the tags that launchers put before lines.

Tags of mpirun ``[1,5]<stdout>:``, srun ``5:``, torch ``[rank5]:`` and torchrun ``[5]:`` or ``[default5]:``, vLLM's
``(Worker_TP5 pid=812)`` or ``(VllmWorker rank=5 pid=812)``. Names of pods and Ray's ``(RayWorker pid=812)`` are not ranks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from psmkit.logparse.types import Value

__all__ = [
    "is_default_group",
    "local_rank_of_tag",
    "pid_of_tag",
    "process_of_tags",
    "rank_in_line",
    "rank_of_tag",
    "ranks_in",
    "slot_of_tag",
    "without_tag",
]

# torchrun's number is a local rank; the others are ranks of the job.
_LOCAL = re.compile(r"^\[(\d{1,18})\]:?$")
_ROLE = re.compile(r"^\[(?!rank\d)[A-Za-z_]+(\d{1,18})\]:?$")
_PID = re.compile(r"\bpid=(\d{1,18})")
# Ray's tag, with the address of another host; vLLM puts its own tag before it.
_ACTOR = re.compile(r"\([\w.:-]+(?: [\w=]+)? pid=(\d{1,9})(?:, ip=([0-9A-Fa-f.:]+))?\)")
_MPIRUN = re.compile(r"^\[?\d+,(\d{1,18})\]?(?:<\w+>)?:?$")
_SRUN = re.compile(r"^(\d{1,18})\]?:?$")
_WHOLE_TORCH = re.compile(r"^\[?rank *(\d{1,18})\]?:?$")
# vLLM numbers ranks by data, pipeline, context and tensor parallelism, in this order: the number within the last one is the rank where the
# others are 0. Without pipelines the number among the experts' ranks is the rank.
_VLLM_TAG = (
    r"\((?:VllmWorker rank=(\d{1,18})"
    r"|(?:Worker_|VllmWorker )(?:DP0_)?(?:PP0_)?(?:PCP0_)?TP(\d{1,18})(?:_DCP\d+)?(?:_EP\d+)?"
    r"|Worker_(?:DP\d+_)?(?:PCP\d+_)?(?:TP\d+_)?(?:DCP\d+_)?EP(\d{1,18})) pid=\d+\)"
)
_VLLM = re.compile(f"^{_VLLM_TAG}$")
_TORCH = re.compile(r"\brank\s*(\d{1,18})")
# A tag inside the line, after that of another launcher: torch, mpirun, horovodrun, SGLang (a tensor-parallel rank, in the first stage of a
# pipeline; its releases print the time in several forms), TensorRT-LLM, Lightning, Composer, NVIDIA's resiliency extension, Orbax (JAX's
# process).
_IN_LINE = (
    re.compile(r"\[rank(\d{1,18})\]:"),
    re.compile(r"\[\d+,(\d{1,18})\]<std(?:out|err)>:"),
    re.compile(r"\[(\d{1,18})\]<std(?:out|err)>:"),
    re.compile(
        r"\[(?:(?:\d{4}-)?\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d+)?(?: DP\d+)?(?: PP0)?(?: ATTN_CP\d+)?(?: MOE_DP\d+)? TP(\d{1,18})(?: EP\d+)?\] "
    ),
    re.compile(r"\[TRT-LLM\] \[RANK (\d{1,18})\]"),
    re.compile(r"\[rank: (\d{1,18})\] "),
    re.compile(r"\brank(\d{1,18})\[\d+\]\[\w+\]: "),
    re.compile(r"\[workload:(\d{1,18})\(\d+\) infra:"),
    re.compile(r"\[process=(\d{1,18})\]\[thread="),
    re.compile(r"(?:\[TensorRT-LLM\]\[(?:ERROR|WARNING|INFO)\]|\[TRT-LLM\] \[[EWI]\] )\[(\d{1,18})\] "),
    re.compile(_VLLM_TAG),
)
# torchelastic's ``[role0|0]:`` holds a local and a global rank in either order; the global one is never the smaller.
_ROLES = re.compile(r"\[[A-Za-z_]+(\d{1,18})\|(\d{1,18})\]:")
_OUTPUTS = ("<stdout>:", "<stderr>:", ":")


def rank_of_tag(tag: str | None) -> int | None:
    """The job's rank in a tag; None if there is none, as in ``[2]:``, which is a local rank."""
    return _first((_TORCH, _MPIRUN, _SRUN, _VLLM), (tag or "").strip())


def slot_of_tag(tag: str | None) -> int | None:
    """The local or global process number in a tag; None if the tag is another kind of name."""
    return _first((_LOCAL, _MPIRUN, _SRUN, _WHOLE_TORCH, _VLLM), (tag or "").strip())


def local_rank_of_tag(tag: str | None) -> int | None:
    """The local rank in torchrun's tag, ``[2]:`` or ``[default2]:``."""
    return _first((_LOCAL, _ROLE), (tag or "").strip())


def pid_of_tag(tag: str | None) -> int | None:
    """The process id in the tag of Ray or vLLM."""
    return _first((_PID,), tag or "")


def process_of_tags(text: str) -> tuple[int | None, str | None]:
    """The process id and the host in the last tag of Ray or vLLM in a line: it stands next to the process's own words."""
    found = list(_ACTOR.finditer(text))
    return (int(found[-1].group(1)), found[-1].group(2)) if found else (None, None)


def is_default_group(fields: Mapping[str, Value]) -> bool:
    """Whether torch's line is about the default process group, whose ranks are global, or names no group."""
    group = fields.get("group")
    return group is None or str(group).startswith("0") or "default_pg" in str(group)


def rank_in_line(text: str) -> int | None:
    """The rank in a tag inside a line."""
    both = _ROLES.search(text)
    return max(int(both.group(1)), int(both.group(2))) if both is not None else _first(_IN_LINE, text)


def ranks_in(text: Value | None) -> list[int]:
    """The ranks of ``1, 3``; of a text that begins before the list, those behind its last bracket."""
    parts = str("" if text is None else text).rpartition("[")[2].split(",")
    return [int(p) for p in (part.strip() for part in parts) if p.isascii() and p.isdigit() and len(p) < 10]


def without_tag(text: str, tag: str | None) -> str:
    """A line without a launcher's tag at its start."""
    rest = text.strip()
    if tag and rest.startswith(tag):
        rest = rest[len(tag) :]
        for output in _OUTPUTS:
            rest = rest.removeprefix(output)
    return rest.strip()


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    if not text:  # as the tag of most lines
        return None
    found = next((m for pattern in patterns if (m := pattern.search(text))), None)
    return int(found[found.lastindex or 1]) if found is not None else None
