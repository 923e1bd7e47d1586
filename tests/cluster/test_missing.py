"""Without the extra ``dask``."""

from __future__ import annotations

import sys

import pytest

from psmkit.cluster import connected
from psmkit.model.errors import PsmkitError


def test_the_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(PsmkitError, match=r"needs the package distributed: pip install 'psmkit\[dask\]'"), connected():
        pass
