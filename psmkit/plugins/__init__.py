"""NCCL's plugins: what their ABIs are, what a library that claims to be one holds, and which releases load it."""

from __future__ import annotations

from psmkit.plugins.check import Check, Found, Use, check
from psmkit.plugins.lookup import Release, all_releases, release

__all__ = ["Check", "Found", "Release", "Use", "all_releases", "check", "release"]
