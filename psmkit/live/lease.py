"""A lease on a file: the kernel's own word that nobody else has the file open or mapped.

The kernel grants a write lease only if no other open file leads to the inode. It counts those of all users, containers and mount
namespaces, mappings whose descriptor is closed, and descriptors on their way through a socket. /proc shows less. As long as the lease is
held, a process that opens the file waits.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
from collections.abc import Iterator

__all__ = ["InUse", "NoLease", "lease"]


class InUse(Exception):  # noqa: N818 - it says what is so
    """Somebody has the file open or mapped."""


class NoLease(Exception):  # noqa: N818
    """The kernel gives no leases on this file, or not to this user."""


@contextlib.contextmanager
def lease(fd: int) -> Iterator[None]:
    """Hold the write lease of a file that was opened for reading; be brief.

    Raises:
        InUse: somebody else has the file open or mapped.
        NoLease: the question cannot be answered.
    """
    try:
        # The signal for a process that wants to open it: the usual one, SIGIO, would end this process.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            raise InUse from None
        raise NoLease(os.strerror(error.errno or 0)) from None
    try:
        yield
    finally:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
