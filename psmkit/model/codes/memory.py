"""Codes of memory and handles (PSM5xx)."""

from __future__ import annotations

from psmkit.model.findings import Severity
from psmkit.model.kinds import Code, Effect

__all__ = ["TABLE"]

TABLE = (
    Code(
        code="PSM501",
        title="attach to a shared memory segment that no rank created",
        effect=Effect.FAILS,
        meaning="A rank could not attach to a segment: no rank created a segment of that name, or its creator removed it.",
        next_step="Compare which ranks use cuMem host memory and which use /dev/shm. NCCL_CUMEM_HOST_ENABLE=0 on all ranks makes them equal (NVIDIA/nccl#2190).",
    ),
    Code(
        code="PSM502",
        title="shared memory mode split",
        effect=Effect.FAILS,
        meaning="Some ranks share host memory through cuMem and others through files in /dev/shm. A rank reads a peer's descriptor as the wrong kind.",
        next_step="Set NCCL_CUMEM_HOST_ENABLE to the same value (0) on all ranks (NVIDIA/nccl#2190).",
    ),
    Code(
        code="PSM503",
        title="/dev/shm is full",
        effect=Effect.FAILS,
        by_text=True,
        meaning="A shared memory segment could not be created or extended.",
        next_step="Compare `df -h /dev/shm` with the size in the message, remove leftovers of dead processes, and make /dev/shm larger (in a container: --shm-size, or an emptyDir of medium Memory).",
    ),
    Code(
        code="PSM504",
        title="file descriptors run out",
        effect=Effect.FAILS,
        meaning="The process cannot open more files, or its descriptor numbers keep growing.",
        next_step="Raise ulimit -n. Check that the process closes its descriptors when a communicator is destroyed.",
    ),
    Code(
        code="PSM505",
        title="never freed at teardown",
        severity=Severity.WARNING,
        effect=Effect.LEAKS,
        meaning="A buffer or segment was allocated and not freed although its communicator was torn down.",
        next_step="Find the teardown function of the transport that allocated it, and free it there.",
    ),
    Code(
        code="PSM506",
        title="registration never released",
        severity=Severity.WARNING,
        effect=Effect.LEAKS,
        meaning="A buffer was registered and not deregistered although its communicator was torn down.",
        next_step="Pair every ncclCommRegister with ncclCommDeregister before the communicator is destroyed.",
    ),
    Code(
        code="PSM507",
        title="handle of one process used by another",
        effect=Effect.FAILS,
        names_origin=True,
        meaning="A process used a stream, event, memory handle or pointer that belongs to another process.",
        next_step="Keep shareable and process-local info in different types. The evidence names the struct that was sent to the other process.",
    ),
    Code(
        code="PSM508",
        title="memory import failed",
        effect=Effect.FAILS,
        names_origin=True,
        meaning="A rank could not import, map or open a peer's shared memory.",
        next_step="Compare the exporter's lines. Check permissions, container isolation and free memory on the importing device.",
    ),
    Code(
        code="PSM509",
        title="out of memory",
        effect=Effect.FAILS,
        names_origin=True,
        by_text=True,
        meaning="An allocation failed on the device or the host.",
        next_step="Free memory on that device, or lower NCCL_BUFFSIZE and the number of channels.",
    ),
    Code(
        code="PSM510",
        title="use of a handle that was destroyed or never created",
        effect=Effect.FAILS,
        meaning="A CUDA call received a stream, event or memory handle that does not exist in its process: it was destroyed or never created.",
        next_step="Compare the stacks of the code that destroyed the handle and of the code that used it. A handle from a message or from shared memory belongs to another process.",
    ),
    Code(
        code="PSM511",
        title="invalid access to device memory",
        effect=Effect.FAILS,
        meaning="A copy or fill went beyond its allocation, a copy or fill used freed memory, or host code dereferenced a device pointer.",
        next_step="The stacks show the access, the allocation and the free. Compare the length of the copy with the size of the allocation.",
    ),
    Code(
        code="PSM512",
        title="double or invalid free",
        severity=Severity.WARNING,
        meaning="Memory or a handle was freed twice, or the freed address is not the start of an allocation. A whole reservation that is unmapped while nothing is mapped in it is only noted: that ends nothing.",
        next_step="The stacks show both frees. Remove one of them.",
    ),
    Code(
        code="PSM513",
        title="event used before it was recorded",
        severity=Severity.WARNING,
        meaning="A query or a wait used an event that was never recorded. CUDA reports such an event as complete, whatever the work does, and answers cudaEventElapsedTime with an invalid handle error.",
        next_step="Record the event before any thread queries it. Otherwise a progress loop takes unfinished work as done.",
    ),
    Code(
        code="PSM514",
        title="memory of a dead process in use",
        severity=Severity.WARNING,
        meaning="The process uses imported memory or an imported event although the process that owns it has ended.",
        next_step="Find out why the owner died. On an abort, close imports before the peers exit.",
    ),
    Code(
        code="PSM515",
        title="stream blocked behind work that has not ended",
        severity=Severity.WARNING,
        look_first=True,
        meaning="Queued work, or a thread that synchronises, must wait for a host function that has not returned or for a memory value. If the host function waits for this work or this thread, both wait for ever. If it waits for a peer, look at the peer.",
        next_step="Find out what the host function or the memory wait needs. Put the copies of a proxy thread on a non-blocking stream that the proxy created, never on stream 0.",
    ),
    Code(
        code="PSM521",
        title="process-local field leaves its process",
        severity=Severity.WARNING,
        meaning="A struct that crosses a process boundary has a field that means something in one process only: a stream, an event, a pointer, a lock. Nothing breaks as long as no other process uses it.",
        next_step="Send a struct of its own, with fixed-width numbers and what the peer needs to attach. If the field is harmless, suppress it with the reason.",
    ),
    Code(
        code="PSM522",
        title="handle of another process taken over",
        effect=Effect.FAILS,
        meaning="The code uses a handle out of a peer's message, or writes the message over the resources that this process made for the connection. The handle belongs to the peer's process: here it is invalid, or another object.",
        next_step="Read from the message only what the peer needs to attach, field by field. Keep streams and events in a struct that never leaves the process.",
    ),
)
