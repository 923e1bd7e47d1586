"""NCCL's plugins: their ABIs, the contents of plugin libraries, and the releases that load them."""

from __future__ import annotations

from psmkit.plugins.check import Check, Found, Use, check
from psmkit.plugins.lookup import Release, all_releases, release

__all__ = ["Check", "Found", "Release", "Use", "all_releases", "check", "release"]
