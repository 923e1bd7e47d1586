"""``--lang``: the language of a report's words, for the commands that print them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from psmkit.report.language import Words

__all__ = ["lang_option", "spoken"]

_Command = TypeVar("_Command", bound=Callable[..., Any])
_LANGUAGES = ("en", "zh")
#: Characters of each language that an output must be able to show.
_SAMPLES = {"zh": "\u8bca\u65ad\uff0c"}


def lang_option(command: _Command) -> _Command:
    """``--lang``; the command gets it as ``lang``, which :func:`spoken` takes."""
    return click.option(
        "--lang", type=click.Choice(_LANGUAGES), help="Language of the text: en, or zh for Chinese.  [by locale]"
    )(command)


def spoken(lang: str | None, output: str | None = None) -> Words:
    """The words to print: those of ``lang``, else of the locale. English where standard output cannot show the language.

    Args:
        lang: the value of ``--lang``.
        output: the file that the text goes to, in UTF-8; None: standard output.
    """
    from psmkit.report.language import ENGLISH, by_locale, words_of

    language = lang or by_locale(os.environ)
    if language == "en":
        return ENGLISH
    if output is None and not _shows(_SAMPLES[language]):
        if lang is not None:
            click.echo(
                f"psmkit: --lang {lang}: the encoding of this output ({sys.stdout.encoding}) cannot show it; in English:",
                err=True,
            )
        return ENGLISH
    return words_of(language)


def _shows(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
