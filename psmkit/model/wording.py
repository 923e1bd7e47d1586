"""Words that every part of psmkit prints alike: numbers with their nouns, and the stages that a reader knows."""

from __future__ import annotations

from psmkit.model.late import regex

__all__ = [
    "CONSEQUENCE",
    "ENDED",
    "ENDED_BY_LAUNCHER",
    "LACKS",
    "LAST_RESORT",
    "RAISED",
    "as_shown",
    "counted",
    "plural",
    "protocol_stage",
    "uncoloured",
    "without_bars",
]

#: What begins the note about what an undecided input lacks.
LACKS = "missing for a verdict: "

#: The stage of an error that a check raised in place of a hang.
RAISED = "raised"

#: The stages of a process that has ended or is lost to its peers: it does not wait.
ENDED = frozenset({"crashed", "died", "error", "killed", "lost"})

#: The stage of a job whose launcher ended its workers before they were done.
ENDED_BY_LAUNCHER = "ended by launcher"

#: The stage of an error in words that psmkit does not know: it counts only where nothing else explains how a log ends.
LAST_RESORT = "last words"

#: The stage of ranks that were ended because of a failure or a wait that the log shows.
CONSEQUENCE = "consequence"

#: The stage of a hang that the flight recorder's dumps show, which a watchdog can report in a log, too.
DUMPED = "dumped"

# What a finding calls its stage where it has no place in NCCL's protocol: the kind of its evidence, or how a process ended.
_KINDS = frozenset(
    (
        *(
            *ENDED,
            "abort",
            CONSEQUENCE,
            DUMPED,
            "evidence",
            "handles",
            "injected",
            "lab",
            "log",
            "memory",
            "net",
            "plan",
            ENDED_BY_LAUNCHER,
            LAST_RESORT,
            RAISED,
        ),
        *(
            "data",
            "data plane",
            "file descriptors",
            "hung task",
            "plan rules",
            "proxy dump",
            "shared memory",
            "stacks",
            "stopped",
            "streams",
        ),
        *("unresponsive", "unknown", "waiting"),
    )
)


def plural(number: int, one: str, many: str | None = None) -> str:
    """The word for ``number`` things: ``one``, else ``many``, which is ``one`` with an s by default."""
    return one if number == 1 else many or f"{one}s"


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number and its noun: ``1 process``, ``2,000 processes``."""
    return f"{number:,} {plural(number, one, many)}"


def protocol_stage(stage: str | None) -> str | None:
    """``stage`` if it is a place in the protocol, such as ``proxy Setup``; None for ``error``, ``handles`` and the like."""
    return None if stage is None or stage in _KINDS else stage


#: An escape sequence that sets a colour or clears a line, also as a program spells it that quotes another one's output.
_COLOUR = regex(r"(?:\x1b|\\x1b|\\033|\\u001b|\\e)\[[0-9;]*[mK]")


def uncoloured(text: str) -> str:
    """A line of a log without the escape sequences that set colours."""
    return _COLOUR.sub("", text) if "\x1b" in text or "\\" in text else text


#: A progress bar of tqdm, with and without a total.
_BAR = regex(
    r" *(?:\b(?:Epoch|Step|Train|Loading|Validation|Eval)[\w ]{0,30}: *)?\b\d{1,3}%\|[^|]{0,300}\| *[\w.]+/[\w.]+ \[[^\[\]]{0,120}\] *"
    r"| *\b\d+it \[[^\[\]]{0,80}(?:it/s|s/it)[^\[\]]{0,120}\] *"
)


#: What a progress bar has: its share, and its pace.
_DRAWN = ("%|", "it/s", "s/it", "it [")


def as_shown(text: str) -> str:
    """A line without the progress bars at its start over which a carriage return writes, as a terminal shows it."""
    if "\r" not in text:
        return text
    parts = text.split("\r")
    drawn = (n for n, part in enumerate(parts[:-1]) if part.strip() and not any(sign in part for sign in _DRAWN))
    return "\r".join(parts[next(drawn, len(parts) - 1) :])


def without_bars(text: str, mark: str = " ") -> str:
    """A text with ``mark`` in place of the progress bars that another thread drew into it."""
    drawn = ("%|" in text or "it [" in text) and _BAR.search(text) is not None
    return _BAR.sub(mark, text).strip() if drawn else text
