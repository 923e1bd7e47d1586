"""What a worker runs. Tasks take bytes and return bytes: JSON, and the arrays of a part. Nothing else of psmkit crosses a machine's border.

A task returns its errors, too, so that no exception of a worker is pickled.
"""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from psmkit.catalogue import Catalogue
from psmkit.catalogue.loader import load_texts
from psmkit.logparse.arrange import Head, Peek
from psmkit.logparse.parts import Share, fingerprint, read_part
from psmkit.logparse.remote import Remote
from psmkit.logparse.streams import Input, Place, Spool
from psmkit.model.errors import InputError, PsmkitError

__all__ = ["heads", "heads_of", "movable", "part", "part_of", "request", "said"]

_GOOD, _ERROR = b"=", b"!"
_KEPT = 4  # catalogues


def movable(item: Input) -> bool:
    """Whether another machine can read an input: standard input and members of compressed archives are here only."""
    return item.place is None or not isinstance(item.place.base, Spool)


def request(catalogue: Catalogue, inputs: Mapping[int, Input], share: Share | None = None) -> bytes:
    """What a task is asked to do: for :func:`heads` with these inputs, for :func:`part` with a share of them."""
    said: dict[str, Any] = {
        "fingerprint": fingerprint(catalogue),
        "catalogue": [[name, base64.b64encode(data).decode()] for name, data in catalogue.extra],
        "inputs": [[number, *_told(item)] for number, item in inputs.items()],
    }
    if share is not None:
        said |= {"streams": share.streams, "files": share.files, "homes": share.homes}
    return json.dumps(said).encode()


def heads(asked: bytes) -> bytes:
    """The heads of inputs; :func:`heads_of` reads the answer."""

    def find(given: Mapping[str, Any]) -> bytes:
        peek = Peek(_catalogue(given))
        found = []
        for number, item in _inputs(given).items():
            head = peek.head(item)
            found.append([number, [[*name, tid] for name, tid in head.threads], sorted(head.born)])
        return json.dumps(found).encode()

    return _answered(asked, find)


def heads_of(answer: memoryview) -> dict[int, Head]:
    """The heads in an answer, by the numbers of their inputs."""
    return {
        number: Head(
            {((tag, host, pid), tid): None for tag, host, pid, tid in threads},
            {(tag, host, pid) for tag, host, pid in born},
        )
        for number, threads, born in json.loads(bytes(answer))
    }


def part(asked: bytes) -> bytes:
    """The part of a share; :func:`psmkit.logparse.parts.unpacked` reads the answer."""
    return _answered(asked, lambda given: read_part(part_of(given), _catalogue(given)))


def part_of(given: Mapping[str, Any]) -> Share:
    """The share in a request."""
    homes = [(stream, host, pid, home) for stream, host, pid, home in given["homes"]]
    return Share(given["streams"], given["files"], _inputs(given), homes)


def said(answer: bytes, worker: str) -> memoryview:
    """What a task returned.

    Raises:
        PsmkitError: it is an error.
    """
    if answer[:1] == _GOOD:
        return memoryview(answer)[1:]
    told = json.loads(answer[1:])
    if told["path"] is not None:
        raise InputError(told["path"], f"{told['reason']} (on the worker {told['host']})")
    raise PsmkitError(f"the worker {told['host']} ({worker}): {told['reason']}")


def _answered(asked: bytes, do: Callable[[Mapping[str, Any]], bytes]) -> bytes:
    try:
        given = json.loads(asked)
        if fingerprint(_catalogue(given)) != given["fingerprint"]:
            raise PsmkitError("it has another version of psmkit: install the same one on all machines")
        return _GOOD + do(given)
    except InputError as error:
        told: dict[str, str | None] = {"path": error.path, "reason": error.reason}
    except PsmkitError as error:
        told = {"path": None, "reason": str(error)}
    except OSError as error:
        told = {"path": error.filename, "reason": (error.strerror or str(error)).lower()}
    return _ERROR + json.dumps({**told, "host": socket.gethostname()}).encode()


def _catalogue(given: Mapping[str, Any]) -> Catalogue:
    return _loaded(tuple((name, base64.b64decode(data)) for name, data in given["catalogue"]))


@lru_cache(maxsize=_KEPT)
def _loaded(extra: Sequence[tuple[str, bytes]]) -> Catalogue:
    return load_texts(extra)


def _told(item: Input) -> list[Any]:
    place: list[Any] | None = None
    if item.place is not None:
        base = item.place.base
        assert not isinstance(base, Spool), "only an input that is movable is read elsewhere"
        remote = isinstance(base, Remote)
        place = [remote, base.url if isinstance(base, Remote) else base, item.place.offset, item.place.size]
    return [item.path, item.kind, item.size, item.encoding, place]


def _inputs(given: Mapping[str, Any]) -> dict[int, Input]:
    found = {}
    for number, path, kind, size, encoding, place in given["inputs"]:
        at = None
        if place is not None:
            remote, base, offset, length = place
            at = Place(Remote(base) if remote else base, offset, length)
        found[number] = Input(path, kind, size, encoding=encoding, place=at)
    return found
