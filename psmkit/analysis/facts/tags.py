"""Process numbers in the tags that launchers put before lines.

Tags of mpirun ``[1,5]<stdout>:``, srun ``5:``, torch ``[rank5]:`` and torchrun ``[5]:`` or ``[default5]:``, vLLM's
``(Worker_TP5 pid=812)`` or ``(VllmWorker rank=5 pid=812)``, and the member ``"rank": 5`` of a log of JSON objects. Names of pods and Ray's ``(RayWorker pid=812)`` are not ranks:
they name a host and a process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from psmkit.logparse.types import Value
from psmkit.model.late import dataclass, regex

__all__ = [
    "ACTOR",
    "BEFORE",
    "HEADS",
    "INSIDE",
    "Form",
    "ended_in",
    "host_of_tag",
    "is_default_group",
    "label_of_tag",
    "local_rank_of_tag",
    "pid_of_tag",
    "process_of_head",
    "process_of_tags",
    "rank_at_start",
    "rank_in_line",
    "rank_of_tag",
    "ranks_in",
    "slot_of_tag",
    "without_tag",
]

_N = r"\d{1,18}"


@dataclass(frozen=True, slots=True)
class Form:
    """A form of tags: the program that prints it, and its text with the groups ``rank``, ``rank_2``, ``local_rank``, ``pid`` and ``host``.

    ``whole``: the tag is nothing but the number, so that it may count processes where the rank is not known. ``sign`` is in each such tag.
    """

    program: str
    text: re.Pattern[str]
    whole: bool = False
    sign: str = ""


def _form(program: str, text: str, whole: bool = False, sign: str = "") -> Form:
    return Form(program, regex(text), whole, sign)


# vLLM numbers ranks by data, pipeline, context and tensor parallelism, in this order: the number within the last one is the rank where the
# others are 0. Without pipelines the number among the experts' ranks is the rank.
_VLLM = (
    rf"\(VllmWorker rank=(?P<rank>{_N}) pid=\d+\)",
    rf"\((?:Worker_|VllmWorker )(?:DP0_)?(?:PP0_)?(?:PCP0_)?TP(?P<rank>{_N})(?:_DCP\d+)?(?:_EP\d+)? pid=\d+\)",
    rf"\(Worker_(?:DP\d+_)?(?:PCP\d+_)?(?:TP\d+_)?(?:DCP\d+_)?EP(?P<rank>{_N}) pid=\d+\)",
)

#: What stands before a line, cut off by the scanner. torchrun's numbers are local ranks; the others are ranks of the job.
BEFORE = (
    _form("torch", rf"\b[Rr]ank\s*(?P<rank>{_N})", sign="ank"),
    _form("torch", rf"^\[?[Rr]ank *(?P<rank>{_N})\]?:?$", whole=True, sign="ank"),
    _form("torchrun", rf"^\[(?P<local_rank>{_N})\]:?$", whole=True, sign="["),
    _form("torchrun with roles", rf"^\[(?!rank\d)[A-Za-z_]+(?P<local_rank>{_N})\]:?$", sign="["),
    _form("mpirun", rf"^\[?\d+,(?P<rank>{_N})\]?(?:<\w+>)?:?$", whole=True, sign=","),
    _form("structured logs", rf'^"(?:global_)?rank": ?(?P<rank>{_N})$', sign='"'),
    _form("srun", rf"^(?P<rank>{_N})\]?:?$", whole=True),
    *(_form("vLLM", f"^{text}$", whole=True, sign="pid=") for text in _VLLM),
    _form("Ray and vLLM", rf"\bpid=(?P<pid>{_N})", sign="pid="),
)
#: Launchers that number the tasks that they start, which may be launchers themselves.
_LABELS = ("srun", "mpirun")
#: A tag inside the line, after that of another launcher. SGLang's number is a tensor-parallel rank, in the first stage of a pipeline; its releases
#: print the time in several forms. torchelastic's holds a local and a global rank in either order.
INSIDE = (
    _form("torchelastic", rf"\[[A-Za-z_]+(?P<rank>{_N})\|(?P<rank_2>{_N})\]:"),
    _form("torch", rf"\[rank(?P<rank>{_N})\]:"),
    _form("mpirun", rf"\[\d+,(?P<rank>{_N})\]<std(?:out|err)>:"),
    _form("horovodrun", rf"\[(?P<rank>{_N})\]<std(?:out|err)>:"),
    _form(
        "SGLang",
        r"\[(?:(?:(?:\d{4}-)?\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d+)?)?(?: ?DP\d+)?(?: ?PP0)?(?: ATTN_CP\d+)?(?: MOE_DP\d+)?"
        rf" ?TP(?P<rank>{_N})(?: EP\d+)?(?: PP0)?\] ",
    ),
    _form("TensorRT-LLM", rf"\[TRT-LLM\] \[RANK (?P<rank>{_N})\]"),
    _form("HugeCTR", rf"\[(?:HCTR|HUGECTR)\]\[[\d:.]+\]\[\w+\]\[(?:RANK|RK)(?P<rank>{_N})\]"),
    _form("Lightning", rf"\[rank: (?P<rank>{_N})\] "),
    _form("Composer", rf"\brank(?P<rank>{_N})\[\d+\]\[\w+\]: "),
    _form("NVIDIA's resiliency extension", rf"\[workload:(?P<rank>{_N})\(\d+\) infra:"),
    _form("Determined", rf"\[rank=(?P<rank>{_N})\] \|\| "),
    _form("SageMaker", rf"\[\d+,mpirank:(?P<rank>{_N}),[\w-]+\]<std(?:out|err)>:"),
    _form("Orbax", rf"\[process=(?P<rank>{_N})\]\[thread="),
    _form(
        "TensorRT-LLM",
        rf"(?:\[TensorRT-LLM\]\[(?:ERROR|WARNING|INFO)\]|\[TRT-LLM\] \[[EWI]\] )\[(?P<rank>{_N})\] ",
    ),
    *(_form("vLLM", text) for text in _VLLM),
    # a rank without its local rank can be another process, which the line is about
    _form("key=value", rf"\b(?:global_)?rank=(?P<rank>{_N})(?:[ ,]+world_size=\d+)?[ ,]+local_rank=\d+\b"),
    _form("key=value", rf"\blocal_rank=\d+[ ,]+(?:global_)?rank=(?P<rank>{_N})\b"),
)
#: What a program puts before its own lines, behind the time: ``[Rank 3]``, ``(rank3)``, ``rank 3 |`` or ``[R3]``.
_TIME = r"(?:\[?\d{4}[-/]\d\d[-/]\d\d[T ])?\[?\d\d:\d\d:\d\d(?:[.,]\d+)?Z?\]?[ :,|-]*"
_OWN = regex(
    rf"^(?:{_TIME})?(?:[\[(<](?:[Rr]ank|RANK)[ _:=-]?(?P<rank>{_N})(?:/\d+)?[\])>]|\[R(?P<short>{_N})\]|(?:[Rr]ank|RANK)[ _:=-]?(?P<bare>{_N}) ?[|:](?!:))[: ]"
)
#: The same with both numbers, perhaps behind the host: ``[node7] Rank 6, Local Rank 2, ...``.
_PAIRED = regex(
    rf"^(?:{_TIME})?(?:\[[A-Za-z][\w.-]*\] ?)?(?:global[ _-])?rank[ _:=]*(?P<rank>{_N})[,;|]?[ \[(]+local[ _-]?rank[ _:=]*\d{{1,9}}(?!\w)",
    re.IGNORECASE,
)
#: What the text of a launcher says of a process that ended, as in ``worker 3 exited`` and ``child process 4711 died``: its own number or its id.
_ENDED = regex(
    r"\b(?:worker|process|subprocess|child|task|shard)(?: process)? ?[#=]?\[?(?P<number>\d{1,9})\]?(?= (?:has |was |is |unexpectedly )*(?:exited|died|dead|failed|crashed|killed|terminated|aborted|ended)\b)",
    re.IGNORECASE,
)
_FEWEST_PIDS = 300  # processes that the system starts have the ids below
#: The name of a pod or container that kubectl, stern or Docker Compose puts before a line.
_PLACE = regex(r"^\[?(?:pod/)?(?P<host>[A-Za-z][\w.-]*[-.\d][\w.-]*)(?:/[\w.-]+)?\]?:?$")
#: Ray's tag, with the address of another host; vLLM puts its own tag before it.
ACTOR = _form(
    "Ray and SkyPilot", r"\([\w.:/-]+(?:,? [\w=]+)?,? pid=(?P<pid>\d{1,9})(?:, ip=(?P<host>[0-9A-Fa-f.:]+))?\)"
)
#: The process in the head that a library gives to its own lines. torch's Python code prints its process in the form of glog. glog itself, of C++, prints the
#: id of a thread, which need not be that of its process: it names nobody.
HEADS = (
    _form("torch", rf"(?<![\w.])[IWEF]\d{{4}} \d\d:\d\d:\d\d\.\d+ +(?P<pid>{_N}) [\w./-]+\.py:\d+\]"),
    _form("Open MPI and PMIx", rf"^\[(?P<host>[A-Za-z][\w.-]*?)[:.](?P<pid>{_N})\] "),
    _form("oneCCL", rf"^\d{{4}}:\d\d:\d\d-\d\d:\d\d:\d\d:\((?P<pid>{_N})\) \|"),
    _form("Neuron", rf"^\d{{4}}-\w{{3}}-\d\d \d\d:\d\d:\d\d\.\d+ +(?P<pid>{_N}):\d+ "),
    _form("UCX", rf"^\[\d+\.\d+\] \[(?P<host>[A-Za-z][\w.-]*):(?P<pid>{_N}) *:\d+(?::\d+)?\]"),
    _form("UCX", rf"^\[(?P<host>[A-Za-z][\w.-]*):(?P<pid>{_N}) *:\d+:\d+\] "),
    _form("SHARP", rf"^\[(?P<host>[A-Za-z][\w.-]*):\d+:(?P<pid>{_N}) (?:- |unique id )"),
    _form("libmlx5", r"^mlx5: (?P<host>[\w.-]+): got completion with error"),
    _form("libfabric", rf"^libfabric:(?P<pid>{_N}):\d+:"),
    _form("Ray", rf"^\[\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ [IWEC] (?P<pid>{_N}) \d+\] "),
    _form("gunicorn", rf"^\[\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{{4}}\] \[(?P<pid>{_N})\] \["),
    _form("HCCL", rf"\bHCCL\((?P<pid>{_N}),\w+\):"),
    _form(
        "syslog", rf"^[A-Z][a-z]{{2}} +\d{{1,2}} \d\d:\d\d:\d\d (?P<host>[\w.-]+) (?!kernel)[\w./-]+\[(?P<pid>{_N})\]: "
    ),
)
_OUTPUTS = ("<stdout>:", "<stderr>:", ":")


def rank_of_tag(tag: str | None) -> int | None:
    """The job's rank in a tag; None if there is none, as in ``[2]:``, which is a local rank."""
    return _before(tag).get("rank") if tag else None


def label_of_tag(tag: str | None) -> int | None:
    """The number that srun or mpirun puts before a line: a task of the launcher, which often is a rank."""
    return _before(tag).get("label") if tag else None


def slot_of_tag(tag: str | None) -> int | None:
    """The local or global process number in a tag; None if the tag is another kind of name."""
    return _before(tag).get("slot") if tag else None


def local_rank_of_tag(tag: str | None) -> int | None:
    """The local rank in torchrun's tag, ``[2]:`` or ``[default2]:``."""
    return _before(tag).get("local_rank") if tag else None


def pid_of_tag(tag: str | None) -> int | None:
    """The process id in the tag of Ray or vLLM."""
    return _before(tag).get("pid") if tag else None


@lru_cache(maxsize=1 << 16)  # the rules pass the tags of all ranks in turn: a smaller cache would never hit
def _before(tag: str) -> Mapping[str, int]:
    """The numbers in a tag, ``slot`` is that of a tag that holds nothing else."""
    out: dict[str, int] = {}
    bare = tag.strip()
    for form in BEFORE:
        if form.sign in bare and (found := form.text.search(bare)) is not None:
            for name, number in found.groupdict().items():
                out.setdefault(name, int(number))
                if form.whole:
                    out.setdefault("slot", int(number))
                if form.program in _LABELS and name == "rank":
                    out.setdefault("label", int(number))
    return out


def process_of_tags(text: str) -> tuple[int | None, str | None]:
    """The process id and the host in the last tag of Ray or vLLM in a line: it stands next to the process's own words."""
    found = list(ACTOR.text.finditer(text))
    return (int(found[-1]["pid"]), found[-1]["host"]) if found else (None, None)


def process_of_head(text: str) -> tuple[int | None, str | None]:
    """The process id and the host in the tags of a line, or else in the head that a library gives to its lines."""
    pid, host = process_of_tags(text)
    if pid is None and (found := next((m for form in HEADS if (m := form.text.search(text)) is not None), None)):
        parts = found.groupdict()
        return int(parts["pid"]) if "pid" in parts else None, parts.get("host")
    return pid, host


def host_of_tag(tag: str | None) -> str | None:
    """The pod or container that a tag names; None for the tags of ranks."""
    found = _PLACE.match(tag.strip()) if tag else None
    return found["host"] if found is not None and not _before(found.string) else None


def is_default_group(fields: Mapping[str, Value]) -> bool:
    """Whether torch's line is about the default process group, whose ranks are global, or names no group."""
    group = fields.get("group")
    return group is None or str(group).startswith("0") or "default_pg" in str(group)


def rank_in_line(text: str) -> int | None:
    """The rank in a tag inside a line. Of a local and a global rank, the global one is never the smaller."""
    found = next((m for form in INSIDE if (m := form.text.search(text)) is not None), None)
    return max(map(int, found.groupdict().values())) if found is not None else None


def rank_at_start(text: str) -> int | None:
    """The rank that a program puts before its own lines, as in ``[Rank 3] loading`` or ``Rank 3, Local Rank 1: loading``."""
    text = text.lstrip()
    found = _OWN.match(text) or (_PAIRED.match(text) if "ocal" in text else None)
    return next((int(n) for n in found.groups() if n is not None), None) if found is not None else None


def ended_in(text: str) -> tuple[int | None, int | None]:
    """The number and the process id of the process whose end a text tells, as in ``worker 3 exited`` and ``child process 4711 died``."""
    found = {int(n) for n in _ENDED.findall(text)}
    number = found.pop() if len(found) == 1 else None
    return (None, number) if number is None or number >= _FEWEST_PIDS else (number, None)


def ranks_in(text: Value | None) -> list[int]:
    """The ranks of ``1, 3`` or ``1 3``; of a text that begins before the list, those behind its last bracket."""
    listed = str("" if text is None else text).rpartition("[")[2]
    parts = listed.split() if listed.replace(" ", "").isdecimal() else listed.split(",")
    return [int(p) for p in (part.strip() for part in parts) if p.isascii() and p.isdigit() and len(p) < 10]


def without_tag(text: str, tag: str | None) -> str:
    """A line without a launcher's tag at its start."""
    rest = text.strip()
    if tag and rest.startswith(tag):
        rest = rest[len(tag) :]
        for output in _OUTPUTS:
            rest = rest.removeprefix(output)
    return rest.strip()
