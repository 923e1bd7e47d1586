"""Lines that say by themselves who failed, waits or is late: the processes that they are about, who prints them, and their headline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from psmkit.analysis.facts import lines, outside
from psmkit.analysis.facts.job import Job
from psmkit.analysis.facts.labels import rank_by_tag
from psmkit.analysis.facts.launcher_ends import bare_host
from psmkit.analysis.facts.naming import differing, names_of, ranks_text, words
from psmkit.analysis.facts.ranks import ASSUMED
from psmkit.analysis.facts.tags import ranks_in, without_tag
from psmkit.analysis.inference import blame, faults
from psmkit.catalogue import Message, titles
from psmkit.logparse.types import Event, Ref, Value
from psmkit.model import Named
from psmkit.model.late import regex
from psmkit.model.wording import plural

__all__ = [
    "absent",
    "came",
    "elements",
    "headline",
    "hosts",
    "how_known",
    "named_ranks",
    "named_self",
    "near_ends",
    "other_ends",
    "place",
    "places",
    "printers",
    "short",
    "within_host",
]

_LONGEST = 80
_MOST = 3  # values that a title lists
_MOST_HOSTS = 64  # that failed
_MOST_LISTED = 4096  # ranks of a block
#: The address to which UCX sends, where it is one of IPv4.
_TO = regex(r"\bdgid[= ]::ffff:(\d{1,3}(?:\.\d{1,3}){3})\b")
#: The heads of Horovod's lists: the second one up to 0.19.
_HEADS = ("Missing ranks:", "Stalled ranks:")
#: A list of Horovod up to 0.13 without its blanks, and what tells that a line goes on with such lists.
_READY, _READY_HEAD = regex(r"\[readyranks:([\d,]+)\]"), "[readyranks:"
_STALLED = "Stalledops:"
#: What precedes the host on the line below a message.
_HOST_BELOW = {"launch.mpi.daemon_gone": "hostname:"}
_NEAR = 4  # lines
_LOOPBACK = ("127.", "::1", "localhost")
_NVL_PEERS = 8
_NOBODY = ("a process", "0 processes")


def printers(job: Job, events: Iterable[Event]) -> tuple[list[int], list[int]]:
    """The processes whose ids these lines give, and the ranks of them and of the launcher's tags.

    A stream with one process may hold lines of others, so the stream of a line proves neither.
    """
    events = list(events)
    found = (outside.proc_of_event(job, e) for e in events if isinstance(e.fields.get("pid"), int))
    procs = list(dict.fromkeys(p for p in found if p is not None))
    tagged = {r for e in events if (r := rank_by_tag(job, e)) is not None}
    return procs, sorted(tagged | {r for p in procs if (r := job.rank_of(p)) is not None})


def place(event: Event) -> Named:
    """The host, process id and device that a line names."""
    host, pid, device = event.fields.get("host"), event.fields.get("pid"), event.fields.get("device")
    return Named(
        host=str(host) if host is not None else None,
        pid=pid if isinstance(pid, int) and pid > 0 else None,
        device=device if isinstance(device, int) else None,
    )


def places(events: Iterable[Event]) -> list[Named]:
    """The address that all lines blame, or the processes that they name. A process with its host hides the same one without it.

    A loopback address is that of any host.
    """
    events = list(events)
    addresses = {str(e.fields["addr"]) for e in events if "addr" in e.fields}
    if addresses:
        only = next(iter(addresses))
        near = only.startswith(_LOOPBACK)  # another process of the same host, of which the line does not show which
        return [Named(host=only, either=near, peer_unnamed=near)] if len(addresses) == 1 else []
    found = dict.fromkeys(p for e in events if (p := place(e)).pid is not None)
    whole = {p.pid for p in found if p.host is not None}
    return [Named(host=p.host, pid=p.pid) for p in found if p.host is not None or p.pid not in whole]


def hosts(events: Iterable[Event]) -> list[Named]:
    """The hosts that these lines name, if they are not too many to look at: each is one that failed."""
    found = dict.fromkeys(host for e in events if (host := bare_host(e.fields.get("host"))))
    return [Named(host=host) for host in found] if len(found) <= _MOST_HOSTS else []


def named_ranks(job: Job, entry: Message, events: Sequence[Event]) -> list[int]:
    """The ranks in the field ``missing``, and those of a list below these lines."""
    found = {r for e in events for r in ranks_in(e.fields.get("missing"))}
    lists = _LISTS.get(entry.name)
    return sorted(found | (lists(job, events) if lists is not None else set()))


def came(job: Job, events: Iterable[Event]) -> tuple[int, int] | None:
    """How many of how many processes came, where these lines name some of those that did not; None if the log does not show it."""
    near = {(e.stream, e.ref.seq): e.fields for e in job.events("jax.barrier.count")}
    for event in events:
        for n in range(_NEAR):
            fields = near.get((event.stream, event.ref.seq - n), {})
            number, total = fields.get("came"), fields.get("total")
            if isinstance(number, int) and isinstance(total, int):
                return number, total
    return None


def named_self(job: Job, events: Sequence[Event]) -> list[Named]:
    """Who prints these lines about itself, each once. A rank says more than a device, a host or a process id."""
    out: dict[Named, None] = {}
    for event in events:
        at, rank, local = (
            _place_below(job, event) or place(event),
            outside.global_rank(job, event),
            event.fields.get("local_rank"),
        )
        if rank is not None:
            out[Named(rank, at.host, at.pid, device=at.device)] = None
        elif isinstance(local, int):
            out[Named(local, at.host, at.pid, f"{ASSUMED}local rank", at.device)] = None
        elif at != Named():
            out[at] = None
    return [n for n in out if n.rank is not None] or list(out) or outside.tagged_process(job, events)


def _place_below(job: Job, event: Event) -> Named | None:
    """The host on the next line that is not empty, where the text of this line puts it there."""
    head = _HOST_BELOW.get(event.name)
    text = _next(job, event.ref, event.tag)[1].strip() if head is not None else ""
    host = text.removeprefix(head or "").split()
    return Named(host=host[0]) if head is not None and text.startswith(head) and len(host) == 1 else None


def other_ends(job: Job, events: Sequence[Event]) -> list[Named]:
    """The address of the other end of these failed requests, as each line or the one below it names it, if all name the same one."""
    shown = {m[1] for e in events if (m := _TO.search("".join(q.text for q in job.quotes.of(e.ref)))) is not None}
    if len(shown) == 1:
        return [Named(host=shown.pop())]
    below = {(e.stream, e.ref.seq): e for e in job.events("ucx.request")}
    requests = [below.get((e.stream, e.ref.seq + 1)) for e in events]
    found = {r.fields.get("addr") if r is not None else None for r in requests}
    (addr,) = found if len(found) == 1 else (None,)
    return [Named(host=addr)] if isinstance(addr, str) else []


def elements(events: Iterable[Event]) -> list[Named]:
    """The two elements of NVSHMEM between which there is no way, if all lines are about the same two."""
    pairs = {(e.fields.get("pe"), e.fields.get("other")) for e in events}
    ends = {pe for pair in pairs for pe in pair if isinstance(pe, int)}
    return (
        [Named(pe, basis=f"{ASSUMED}element of NVSHMEM", either=True) for pe in sorted(ends)] if len(ends) == 2 else []
    )


def near_ends(job: Job, events: Iterable[Event]) -> list[Named]:
    """The processes that print these lines of Open MPI about a connection, by the host and the process id on the lines above each."""
    above = {(e.stream, e.ref.seq): e.fields for e in job.events("mpi.help")}
    out: dict[Named, None] = {}
    for event in events:
        near = (above.get((event.stream, event.ref.seq - n), {}) for n in range(1, _NEAR))
        fields = {key: value for found in near for key, value in found.items()}
        host, pid = fields.get("host"), fields.get("pid")
        if event.name == "ompi.tcp_unreached" and isinstance(host, str):
            out[Named(host=host, pid=pid if isinstance(pid, int) else None)] = None
    return list(out)


def absent(events: Iterable[Event]) -> list[Named]:
    """The rank for which several ranks wait in vain, if it is the only one, and waits for none itself."""
    waits: dict[int, set[int]] = {}
    reporters: set[int] = set()
    for event in events:
        rank, peer, value = (event.fields.get(name) for name in ("rank", "peer", "value"))  # a value is about any peer
        if rank is None:
            rank, peer = _in_node(event)
        if isinstance(rank, int):
            reporters.add(rank)
            if isinstance(peer, int) and value is None:
                waits.setdefault(peer, set()).add(rank)
    late = [peer for peer in waits if peer not in reporters]
    if len(late) != 1 or len(reporters) < 2 or waits[late[0]] != reporters:
        return []
    return [Named(late[0], basis=f"{ASSUMED}rank of its group")]


def _in_node(event: Event) -> tuple[int | None, int | None]:
    """The rank of its group that prints a line of a DeepEP job on several nodes, and the one of the same node for which it waits.

    DeepEP counts the nodes (RDMA) and, in each, 8 GPUs (NVL).
    """
    node, own, peer = (event.fields.get(name) for name in ("rdma", "nvl", "src_nvl"))
    if not isinstance(node, int) or not isinstance(own, int):
        return None, None
    return node * _NVL_PEERS + own, node * _NVL_PEERS + peer if isinstance(peer, int) else None


def headline(job: Job, entry: Message, events: Sequence[Event], named: Sequence[Named]) -> str:
    """The title of an entry, filled from these lines. ``named`` are the processes that they are about."""
    assert entry.title is not None

    def value(blank: titles.Blank) -> str | None:
        if blank.name in ("who", "by"):
            who = _text(named) if blank.name == "who" else _printer(job, events)
            return None if who in _NOBODY and blank.default is not None else who
        values = [v for e in events if (v := e.fields.get(blank.name)) not in (None, "")]
        return _value(blank, [bare_host(v) for v in values] if blank.name == "host" else values)

    # the barriers of DeepEP say more than a title can
    title = (_barrier(events) if entry.name == "deepep.timeout" else None) or titles.fill(entry.title, value)
    return title + (differing(_own_text(entry, e) for e in events) if len(named) > 1 else "")


def _own_text(entry: Message, event: Event) -> str:
    """The words that a title takes of the first of several lines."""
    assert entry.title is not None
    blanks = [b for part in titles.read(entry.title) for b in part if isinstance(b, titles.Blank) and not b.form]
    found = (event.fields.get(b.name) for b in blanks)
    return " ".join(text for text in found if isinstance(text, str))


def short(value: Value | None) -> str:
    """A value of a field for a headline."""
    text = " ".join((f"{value:g}" if isinstance(value, float) else str("" if value is None else value)).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _value(blank: titles.Blank, values: Sequence[Value]) -> str | None:
    if not values:
        return None
    if blank.form == "ranks":
        return ranks_text(v for v in values if isinstance(v, int))
    if blank.form == "seconds":
        return short(int(values[0]) // 1000)
    if blank.form in ("list", "only"):
        texts = sorted({short(v) for v in values})
        return words(texts, _MOST) if blank.form == "list" or len(texts) == 1 else None
    return short(values[0])


def _printer(job: Job, events: Sequence[Event]) -> str:
    """The processes that print these lines."""
    procs, ranks = printers(job, events)
    if procs:
        return names_of(job, procs)
    inside = {r for e in events if (r := outside.rank_inside(job, e)) is not None}
    return ranks_text({*ranks, *inside}) if ranks or inside else _text([n for n in places(events) if n.pid is not None])


def _text(named: Sequence[Named]) -> str:
    ranks = sorted({n.rank for n in named if n.rank is not None})
    if ranks:
        local = any((n.basis or "").endswith("local rank") for n in named)
        return ranks_text(ranks).replace("rank", "local rank") if local else ranks_text(ranks)
    if len(named) != 1:
        host = next(iter(named)).host if len({n.host for n in named}) == 1 else None
        return f"{len(named)} processes{f' on {host}' if host else ''}" if named else "a process"
    (only,) = named
    if only.pid is not None:
        return f"process {only.pid}" if only.host is None else f"{only.host}:{only.pid}"
    where = [f"device {only.device}"] if only.device is not None else []
    where += [f"host {only.host}"] if only.host is not None else []
    return "a process on " + " of ".join(where)


def _nodes(events: Sequence[Event]) -> str | None:
    """Who gave up in a kernel of DeepEP between nodes, and whom it waited for on its own node."""
    pairs = {_in_node(e) for e in events}
    ranks, peers = ({n for pair in pairs if (n := pair[at]) is not None} for at in (0, 1))
    if not ranks or any(rank is None for rank, _ in pairs):
        return None
    wait = f"{ranks_text(ranks)} of {'its' if len(ranks) == 1 else 'their'} group gave up in DeepEP"
    return (
        f"{wait} after {'it' if len(ranks) == 1 else 'they'} waited for {ranks_text(peers)}"
        if 0 < len(peers) < _MOST
        else wait
    )


def _barrier(events: Sequence[Event]) -> str | None:
    """Who gave up in a barrier of DeepEP. A value above 0 means that the peer did not come."""
    fields = [e.fields for e in events]
    ranks = {r for f in fields if isinstance(r := f.get("rank"), int)}
    late = {p for f in fields if isinstance(v := f.get("value"), int) and v > 0 and isinstance(p := f.get("peer"), int)}
    if not ranks:
        return _nodes(events)
    texts = [str(f["what"]) for f in fields if "what" in f]
    barrier = "barrier" in texts or any("peer" in f and "what" not in f for f in fields)
    step = "a barrier of DeepEP" if barrier else f"DeepEP's {texts[0]}" if texts else "DeepEP"
    wait = f"{ranks_text(ranks)} of {'its' if len(ranks) == 1 else 'their'} group gave up in {step}"
    return f"{wait}: {ranks_text(late)} did not come" if 0 < len(late) < _MOST else wait


def _listed(job: Job, events: Iterable[Event]) -> set[int]:
    """The ranks in Horovod's lists below these lines, or those that none of its lists of ready ranks has."""
    events = list(events)
    out = _not_ready(job, events)
    for event in events:
        ref, text = _next(job, event.ref, event.tag)
        if not text.endswith(_HEADS):  # a long line may be wrapped
            ref, text = _next(job, ref, event.tag)
        for _ in range(_MOST_LISTED if text.endswith(_HEADS) else 0):
            ref, text = _next(job, ref, event.tag)
            rank, listed, _ = text.rpartition(": [")
            number = "".join(rank.rstrip("!").replace(":", " ").split()[-1:])
            if not listed or not number.isdecimal():
                break
            out.update(ranks_in(number))
    return out


def _not_ready(job: Job, events: Iterable[Event]) -> set[int]:
    """The ranks of the job that no list of ready ranks has; if each is in some list, those that a list lacks."""
    every, lists = _ready(job, events)
    ready = set(chain.from_iterable(lists))
    return every - ready or (every - lists[0].intersection(*lists[1:]) if lists else set())


def how_known(job: Job, entry: Message, events: Iterable[Event]) -> str | None:
    """How it is known which ranks Horovod misses, where it lists only those that are ready."""
    every, lists = _ready(job, events) if entry.name == "horovod.stalled" else (set(), [])
    missing = every - set(chain.from_iterable(lists))
    if not lists or not missing:
        return None
    verb = plural(len(missing), "is", "are")
    return f"The log shows ranks up to {max(every)}, and {ranks_text(missing)} {verb} in none of Horovod's lists of ready ranks."


def _ready(job: Job, events: Iterable[Event]) -> tuple[set[int], list[set[int]]]:
    """The ranks of the job, as far as the log shows them, and Horovod's lists of ready ranks."""
    lists: list[set[int]] = []
    world: set[int] = set()
    for event in events:
        found = [set(map(int, filter(None, m.split(",")))) for m in _READY.findall(_joined(job, event))]
        run = job.run_of_event(event) if found else None
        world |= {(job.runs[run].nranks or 1) - 1} if run is not None and run < len(job.runs) else set()
        lists += found
    if not lists:
        return set(), []
    last = max(world.union(*lists) | outside.printing_ranks(job))
    return set(range(min(last + 1, _MOST_LISTED))), lists


def _joined(job: Job, event: Event) -> str:
    """A line of Horovod with the lines that it was wrapped into, without blanks."""
    ref: Ref | None = event.ref
    parts = ["".join("".join(e.text for e in job.quotes.of(ref)).split())]
    if _STALLED not in parts[0]:  # the list may begin on the next line
        ref, text = _next(job, ref, event.tag)
        parts.append("".join(text.split()))
    begun = _READY_HEAD in parts[-1]
    for _ in range(_MOST_LISTED if _STALLED in parts[-1] else 0):
        ref, text = _next(job, ref, event.tag)
        text = "".join(text.split())
        if ref is None or (_READY_HEAD not in text and (parts[-1].endswith("]") or not begun)):
            break
        parts.append(text)
        begun = True
    return "".join(parts)


def _tasks(job: Job, events: Iterable[Event]) -> set[int]:
    """The tasks that JAX's coordination service lists from these lines on, one a line or on one line."""
    out: set[int] = set()
    for event in events:
        ref: Ref | None = event.ref
        found: list[int] = []
        for n in range(_MOST_LISTED):
            text = "".join(e.text for e in job.quotes.of(ref))
            listed, ended = _tasks_of(text.rpartition("names:")[2] if not n else text)
            found += listed
            if ref is None or (found and (ended or not listed)) or (not found and n == _NEAR):
                break
            ref = lines.below(job, ref)
        out.update(found)
    return out


def _tasks_of(text: str) -> tuple[list[int], bool]:
    """The tasks of a line, and whether other words follow them. The first task at the barrier has a full stop behind it."""
    out: list[int] = []
    for word in text.replace("\\n", " ").split():
        head, task, number = word.partition("/task:")
        digits = number[: len(number) - len(number.lstrip("0123456789"))]
        if task and "/job:" in head and digits and len(digits) < 10 and number[len(digits) :][:1] not in (".", "/"):
            out.append(int(digits))
        elif out and any(c.isalnum() for c in word):
            return out, True
    return out, False


_LISTS = {"horovod.stalled": _listed, "jax.tasks.unhealthy": _tasks, "jax.barrier.late": _tasks}


def _next(job: Job, ref: Ref | None, tag: str | None) -> tuple[Ref | None, str]:
    """The next line that is not empty below another, and its text without the tag."""
    for _ in range(2):
        ref = lines.below(job, ref) if ref is not None else None
        if text := without_tag("".join(e.text for e in job.quotes.of(ref)) if ref is not None else "", tag):
            break
    return ref, text


#: Where the peer at a loopback address is.
_WITHIN_HOST = "A loopback address: the peer is a process on the same host as the process that lost the connection. Look there for one that ended (its last lines, the launcher's output, dmesg)."


def within_host(job: Job, entry: Message, events: Sequence[Event]) -> str | None:
    """What to do about a broken connection to a loopback address, which every host has."""
    addrs = [str(e.fields["addr"]) for e in events if "addr" in e.fields]
    if entry.blames != "peer" or not addrs or not all(map(blame.loopback, addrs)):
        return None
    broke = faults.phrase(job, "a connection broke", lines.matched(job, events[0].ref)) is not None
    return _WITHIN_HOST if broke else None
