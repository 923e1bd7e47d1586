"""Phrases: words that mean something wherever they stand in a text."""

from __future__ import annotations

from pathlib import Path

import pytest

from psmkit.catalogue import Phrase, load
from psmkit.model.errors import CatalogueError

PHRASES = load().phrases


@pytest.mark.parametrize("phrase", PHRASES, ids=lambda p: f"{p.says}: {p.patterns[0]}")
def test_phrase_is_found_in_its_samples_and_not_in_the_other_texts(phrase: Phrase) -> None:
    assert phrase.samples
    assert [load().phrase(phrase.says, text) for text in phrase.samples] == [phrase] * len(phrase.samples)
    others = [load().phrase(phrase.says, text) for text in phrase.others]
    assert phrase not in others  # another phrase with the same meaning may fit


def test_number_out_of_bounds_is_no_match() -> None:
    assert load().phrase("something came first", "Init failed in step: 7") is not None
    assert load().phrase("something came first", "Init failed in step: 8") is None


def test_meaning_that_no_phrase_has_is_an_error() -> None:
    with pytest.raises(KeyError, match="no such meaning"):
        load().phrase("no such meaning", "text")


def test_phrase_of_the_user_stands_behind_ours(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("""[[phrase]]\nsays = "something came first"\npatterns = ["the ring is open"]\n""")
    assert load().phrase("something came first", "the RING is open at 3") is None
    found = load([own]).phrase("something came first", "the RING is open at 3")
    assert found is not None and found.file == str(own)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('says = "x"', "needs says and patterns"),
        ('says = "x"\npatterns = ["Upper"]', "lower case"),
        ('says = "x"\npatterns = "one"', "list of strings"),
        ('says = "x"\npatterns = ["a"]\nfinding = "PSM000"', "no such finding"),
        ('says = "x"\npatterns = ["a"]\nwithin = {code = 3}', "two integers"),
        ('says = "x"\npatterns = ["a"]\ncolour = "red"', "unknown key 'colour'"),
    ],
)
def test_wrong_phrase_is_refused_by_name(tmp_path: Path, text: str, reason: str) -> None:
    own = tmp_path / "own.toml"
    own.write_text("[[phrase]]\n" + text)
    with pytest.raises(CatalogueError, match=reason):
        load([own])
