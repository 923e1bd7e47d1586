"""The option ``--ranks`` of the commands that read logs."""

from __future__ import annotations

from collections.abc import Collection

import click

from psmkit.model.wording import plural

__all__ = ["check_ranks", "rank_words", "wanted_ranks"]


def wanted_ranks(text: str | None) -> frozenset[int] | None:
    """The ranks of ``--ranks``, None without the option.

    Raises:
        click.BadParameter: ``text`` is not a list of ranks.
    """
    from psmkit.report.select import parse_ranks

    try:
        return None if text is None else parse_ranks(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--ranks") from None


def check_ranks(wanted: frozenset[int], known: frozenset[int]) -> None:
    """Refuse a rank that the job does not have: its table is empty and looks as if nothing were wrong.

    Raises:
        click.BadParameter: a rank of ``wanted`` is not in ``known``.
    """
    if none := wanted - known:
        has = "no line names a rank of the job"
        if known:
            low, high = min(known), max(known)
            whole = len(known) == high - low + 1 > 1
            has = f"the job has {f'ranks {low}-{high}' if whole else rank_words(known)}"
        raise click.BadParameter(f"no {rank_words(none)}; {has}", param_hint="--ranks")


def rank_words(ranks: Collection[int]) -> str:
    """``rank 1`` or ``ranks 0-3, 7``."""
    from psmkit.report.layout import ranges

    return f"{plural(len(ranks), 'rank')} {ranges(set(ranks))}"
