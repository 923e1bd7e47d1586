"""Kinds of tasks, with NCCL's numbers: functions, types of data, reductions, and generations of schedulers."""

from __future__ import annotations

import enum

from psmkit._native.psm import lib

__all__ = ["DataType", "Func", "RedOp", "Scheduler"]


class _Named(enum.IntEnum):
    @property
    def label(self) -> str:
        """The name on the command line and in a task file: ``legacy``, ``allreduce``, ``float32``, ``sum``."""
        return self.name.lower()


class Scheduler(_Named):
    """The generation of NCCL whose scheduler makes the plans."""

    LEGACY = int(lib.PSM_PLAN_LEGACY)  #: up to 2.21: work FIFO in slots, least loaded channels
    PLANNER = int(lib.PSM_PLAN_PLANNER)  #: from 2.22: task planner, budgets in bytes

    @property
    def bit(self) -> int:
        """The bit in the ``schedulers`` of a rule or a variant."""
        return 1 << int(self)


class Func(_Named):
    """The function of a task, with NCCL's numbers."""

    BROADCAST = int(lib.PSM_PLAN_BROADCAST)
    REDUCE = int(lib.PSM_PLAN_REDUCE)
    ALLGATHER = int(lib.PSM_PLAN_ALLGATHER)
    REDUCESCATTER = int(lib.PSM_PLAN_REDUCESCATTER)
    ALLREDUCE = int(lib.PSM_PLAN_ALLREDUCE)
    SEND = int(lib.PSM_PLAN_SEND)
    RECV = int(lib.PSM_PLAN_RECV)

    @property
    def p2p(self) -> bool:
        """Whether it is a send or a recv."""
        return self in (Func.SEND, Func.RECV)

    @property
    def rooted(self) -> bool:
        """Whether it is a collective with a root."""
        return self in (Func.BROADCAST, Func.REDUCE)

    @property
    def reduces(self) -> bool:
        """Whether it takes an operator."""
        return self in (Func.REDUCE, Func.REDUCESCATTER, Func.ALLREDUCE)


class DataType(_Named):
    """The type of elements, with NCCL's numbers."""

    INT8 = 0
    UINT8 = 1
    INT32 = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT8E4M3 = 10
    FLOAT8E5M2 = 11

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)[self]


class RedOp(_Named):
    """The reduction of elements, with NCCL's numbers."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4
