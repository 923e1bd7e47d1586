"""The words of a report in the reader's language: English as the renderer writes it, Chinese from ``zh.toml``.

The renderer passes each text to :class:`Words` as an English template with its values. English fills it in; another language has a template of its
own for it, in one file that is read only when that language is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from psmkit.model.wording import counted

__all__ = ["ENGLISH", "LANGUAGES", "Translated", "Words", "by_locale", "words_of"]

LANGUAGES = ("en", "zh")

#: A list of ranks and processes, as findings name them: ``ranks 0-2 and 5``, ``rank 1 (vm:20406)``, ``n0:70 and n1:8``.
_NAME = r"(?:ranks? |process(?:es)? )?[\w.:-]+(?: \([^()]*\))?"
_NAMES = rf"{_NAME}(?:(?:, and |, | and ){_NAME})*"


class Words:
    """English: each text as it stands in the program."""

    language = "en"

    def say(self, text: str, /, **values: object) -> str:
        """``text`` with the values of its placeholders."""
        return text.format(**values) if values else text

    def count(self, number: int, one: str, many: str | None = None) -> str:
        """A number and its noun, as :func:`psmkit.model.wording.counted`."""
        return counted(number, one, many)

    def verdict(self, value: str) -> str:
        """A verdict, such as ``hung``."""
        return value

    def state(self, value: str) -> str:
        """The state of a rank, such as ``stuck``."""
        return value

    def knows(self, text: str) -> bool:
        """Whether :meth:`sentence` says all of ``text`` in this language."""
        return True

    def sentence(self, text: str) -> str:
        """A sentence of a finding or of a verdict. What this language does not know stays English."""
        return text

    def code(self, code: str, part: str) -> str:
        """``title``, ``meaning`` or ``next_step`` of a code."""
        from psmkit.model.codes import CODES

        return str(getattr(CODES[code], part))


ENGLISH = Words()


class Translated(Words):
    """Another language: ``data`` is a file such as ``zh.toml``, whose head describes its tables."""

    def __init__(self, language: str, data: Mapping[str, Any]) -> None:
        self.language = language
        self.codes: Mapping[str, Mapping[str, str]] = data["codes"]
        self.verdicts: Mapping[str, str] = data["verdicts"]
        self.states: Mapping[str, str] = data["states"]
        self.words: Mapping[str, str] = data["words"]
        self.counts: Mapping[str, str] = data["counts"]
        self.frames = [_Frame(english, own) for english, own in data["sentences"].items()]
        self._said: dict[str, str | None] = {}

    def say(self, text: str, /, **values: object) -> str:
        own = self.words.get(text, text)
        return own.format(**values) if values else own

    def count(self, number: int, one: str, many: str | None = None) -> str:
        return self.counts[one].format(f"{number:,}") if one in self.counts else counted(number, one, many)

    def verdict(self, value: str) -> str:
        return self.verdicts.get(value, value)

    def state(self, value: str) -> str:
        return self.states.get(value, value)

    def knows(self, text: str) -> bool:
        return all(self._whole(part) is not None for part in self._parts(text))

    def sentence(self, text: str) -> str:
        said = [(part, self._whole(part)) for part in self._parts(text)]
        return self.words["; "].join(part if own is None else own for part, own in said)

    def code(self, code: str, part: str) -> str:
        return self.codes[code][part] if code in self.codes else super().code(code, part)

    def _parts(self, text: str) -> list[str]:
        """The clauses of a sentence, if it is not known as a whole."""
        return [text] if self._whole(text) is not None else text.split("; ")

    def _whole(self, text: str) -> str | None:
        if text not in self._said:
            self._said[text] = next((own for frame in self.frames if (own := frame.own(text, self)) is not None), None)
        return self._said[text]

    def value(self, text: str) -> str:
        """What stands at a placeholder: names, or a sentence of its own."""
        if (own := self._whole(text)) is not None:
            return own
        items = re.split(r", and |, | and ", text)
        if len(items) > 1 and all(self._whole(item) is not None for item in items):
            return self.words[", "].join(self._whole(item) or item for item in items)
        if re.fullmatch(_NAMES, text) is None:
            return text
        text = re.sub(r"\branks (?=\d)", "rank ", text)
        return re.sub(r"(?<=[\w)]), and | and ", self.words[" and "], text)


class _Frame:
    """An English sentence with placeholders, and the same in another language."""

    def __init__(self, english: str, own: str) -> None:
        self._own = own
        self._pieces = re.split(r"\{(\w+)\}", english)  # literals, and names at odd places
        self._pattern: re.Pattern[str] | None = None

    def own(self, text: str, words: Translated) -> str | None:
        """``text`` in the other language, if it has this form."""
        # Most frames fail here, before their pattern is compiled.
        if not text.startswith(self._pieces[0]) or not all(piece in text for piece in self._pieces[::2]):
            return None
        if self._pattern is None:
            parts = (_placeholder(p) if n % 2 else re.escape(p) for n, p in enumerate(self._pieces))
            self._pattern = re.compile("".join(parts))
        if (match := self._pattern.fullmatch(text)) is None:
            return None
        return self._own.format(**{name: words.value(value) for name, value in match.groupdict().items()})


def _placeholder(name: str) -> str:
    """The pattern of a placeholder: ``n`` and ``m`` are numbers, ``what``, ``why`` and ``text`` several clauses, the others part of one."""
    if name in ("n", "m"):
        return rf"(?P<{name}>[\d,.]+)"
    return rf"(?P<{name}>.+?)" if name in ("what", "why", "text") else rf"(?P<{name}>(?:(?!; ).)+?)"


def by_locale(environment: Mapping[str, str]) -> str:
    """The language of the locale that these variables select: ``zh``, else ``en``.

    The first that is set decides, as in POSIX: LC_ALL, LC_MESSAGES, LANG.
    """
    name = next((value for key in ("LC_ALL", "LC_MESSAGES", "LANG") if (value := environment.get(key))), "")
    return "zh" if name.lower().startswith("zh") else "en"


@cache
def words_of(language: str) -> Words:
    """The words of one of :data:`LANGUAGES`.

    Raises:
        ValueError: there is no such language.
    """
    if language not in LANGUAGES:
        raise ValueError(f"no such language: {language} (one of {', '.join(LANGUAGES)})")
    if language == "en":
        return ENGLISH
    import tomllib
    from importlib import resources

    return Translated(
        language, tomllib.loads(resources.files("psmkit.report").joinpath(f"{language}.toml").read_text("utf-8"))
    )
