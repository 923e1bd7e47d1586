"""Two processes and their proxies, with handlers in Python."""

from __future__ import annotations

import pytest

from psmkit.testing import Ranks
from tests.proxy import calls


@pytest.mark.ranks(2, deadline=60)
def test_byte_crosses_through_a_handler_in_python(ranks: Ranks) -> None:
    (_, asked, _), (answer, _, _) = got = ranks.run(calls.byte_across)
    assert answer == b"!"
    assert asked >= 2  # it was not done at first
    assert [left for _, _, left in got] == [[], []]
