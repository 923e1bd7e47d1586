"""What PyTorch's allocator says about a device when it gets no memory: the request, and what was free, reserved and held by others."""

from __future__ import annotations

from psmkit.logparse.types import Event
from psmkit.model.late import dataclass

__all__ = ["Room", "room_of"]

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
#: A request for more than this part of the device is large by itself.
_LARGE = 0.25


@dataclass(frozen=True, slots=True)
class Room:
    """Sizes in bytes. ``unused`` is reserved by the allocator and not in use; ``others`` is held by ``processes`` other ones, None if not said."""

    request: float
    free: float
    total: float
    unused: float | None
    others: float | None
    processes: int = 0
    splits: bool = (
        False  # the line advises max_split_size_mb: this release has no expandable segments, or hardly knows them
    )

    @property
    def crowded(self) -> bool:
        """Whether several other processes hold more of the device than the allocator could give back: ranks may share it."""
        return self.processes > 1 and self.others is not None and self.others > max(self.unused or 0, self.request)

    @property
    def told(self) -> str:
        """The numbers for a headline."""
        return f"asked for {_size(self.request)}, {_size(self.free)} of {_size(self.total)} free"

    @property
    def explained(self) -> str | None:
        """Whether unused memory of the allocator, or other processes, can be the reason; None if the numbers do not show it."""
        if self.unused is None or self.request <= self.free:
            return None
        if self.crowded and self.others is not None:
            return f"{self.processes} other processes hold {_size(self.others)} of this device."
        parts = f"{_size(self.free)} free and {_size(self.unused)} that PyTorch reserved and does not use"
        if self.request <= self.free + self.unused:
            return f"The request would fit in {parts}: the memory may be in pieces."
        if not self.others:
            return f"The request does not fit in {parts}, so fragmentation is not the reason."
        fits = self.request <= self.free + self.unused + self.others
        also = f"Other processes hold {_size(self.others)}: " + (
            "without them it would fit." if fits else "this is too little, too."
        )
        return f"The request does not fit in {parts}, so fragmentation is not the reason. {also}"

    @property
    def next_step(self) -> str | None:
        """What helps against this lack of memory, None if the numbers do not show it."""
        if self.unused is None or self.request <= self.free:
            return None
        if self.crowded:
            return "Look at the other processes on the device (nvidia-smi). If they are ranks of this job, let each rank select a device of its own: check its local rank and CUDA_VISIBLE_DEVICES. If they are not, end them or use less memory per device."
        if self.request <= self.free + self.unused:
            setting = "max_split_size_mb:128" if self.splits else "expandable_segments:True"
            return f"Try PYTORCH_CUDA_ALLOC_CONF={setting} against fragmentation. If it does not help, use less memory per device (batch size, sequence length, sharding)."
        if self.others and self.request <= self.free + self.unused + self.others:
            return "Look for the other processes on the device (nvidia-smi), and end them or use less memory per device (batch size, sequence length, sharding)."
        if self.request > _LARGE * self.total:
            return "Make this one request smaller: its call is in the traceback. Use a smaller micro-batch or sequence, or do the same work in parts."
        other = "" if self.others is not None else ", and look for other processes on the device (nvidia-smi)"
        return f"Use less memory per device (batch size, sequence length, sharding){other}."


def room_of(event: Event) -> Room | None:
    """The numbers of a line about a lack of device memory, None if it does not give what was free."""
    detail = str(event.fields.get("detail", ""))
    request = _bytes(str(event.fields.get("size", "")))
    if " of which " in detail:
        total = _bytes(detail.partition(" of ")[2].partition(" of which ")[0])
        free = _bytes(detail.partition(" of which ")[2].partition(" is free")[0])
        unused = _bytes(detail.partition(" is reserved by PyTorch but unallocated")[0].rpartition(" and ")[2])
        held = _others(detail)
        others, processes = (sum(held), len(held)) if held is not None else (None, 0)
    elif " total capacity;" in detail:
        total = _bytes(detail.partition(" total capacity;")[0])
        free = _bytes(detail.partition(" free;")[0].rpartition("; ")[2])
        reserved = _bytes(detail.partition(" reserved in total")[0].rpartition("; ")[2])
        used = _bytes(detail.partition(" already allocated;")[0].rpartition("; ")[2])
        unused = max(reserved - used, 0.0) if reserved is not None and used is not None else None
        others, processes = None, 0
    else:
        return None
    if not request or free is None or not total:
        return None
    return Room(request, free, total, unused, others, processes, splits="max_split_size_mb" in detail)


def _others(detail: str) -> list[float] | None:
    """What each other process holds, None if the line does not tell them from its own."""
    if "this process has " not in detail:
        return None
    sizes = [
        _bytes(part.partition(" has ")[2].partition(" memory in use")[0]) for part in detail.split(". Process ")[1:]
    ]
    return [size for size in sizes if size is not None]


def _bytes(text: str) -> float | None:
    number, _, unit = text.strip().partition(" ")
    try:
        return float(number) * _UNITS[unit]
    except (KeyError, ValueError):
        return None


def _size(value: float) -> str:
    unit, scale = next((u, s) for u, s in reversed(_UNITS.items()) if value >= s or s == 1)
    return f"{value / scale:.2f} {unit}" if scale > 1 else f"{value:.0f} {unit}"
