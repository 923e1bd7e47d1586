"""Turn logs into events: the Python interface of the native log scanner.

:func:`scan` reads logs once and returns what the analysis needs: retained events, counts, processes, and the state of
the trackers (proxy calls, fd exchanges, communicators, collectives, resources). :func:`events` returns every matched
line, in batches of columns.
"""

from __future__ import annotations

from psmkit.logparse import inputs
from psmkit.logparse.batches import EventBatch, events
from psmkit.logparse.inputs import ForeignInput, Input, discover
from psmkit.logparse.result import ScanResult
from psmkit.logparse.scanner import scan

__all__ = ["EventBatch", "ForeignInput", "Input", "ScanResult", "discover", "events", "inputs", "scan"]
