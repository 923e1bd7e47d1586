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


def check_ranks(wanted: frozenset[int], known: frozenset[int], suspects: Collection[int] = ()) -> None:
    """Refuse ranks that the job does not have: their table is empty and looks as if nothing were wrong.

    A rank below the highest one in view is one of the job, and so are ``suspects``. Beside other ranks it makes a note on stderr.

    Raises:
        click.BadParameter: a rank of ``wanted`` is no rank of the job, or none of ``wanted`` is in ``known`` or ``suspects``.
    """
    none = wanted - known
    if not none:
        return
    highest = max(known.union(suspects), default=-1)
    beyond = frozenset(rank for rank in none if rank > highest)
    unseen = f"the log has no line of {rank_words(none - beyond)} that psmkit understands"
    if not beyond and not wanted.isdisjoint(known.union(suspects)):
        click.echo(f"psmkit: {unseen}", err=True)
        return
    if not beyond:
        raise click.BadParameter(unseen, param_hint="--ranks")
    has = "no line names a rank of the job"
    if known:
        low, high = min(known), max(known)
        every = len(known) == high - low + 1
        named = f"ranks {low}-{high}" if every and high > low else rank_words(known)
        has = f"the job has {named}" if every else f"the log has lines of {named}"
    raise click.BadParameter(f"no {rank_words(beyond)}; {has}", param_hint="--ranks")


def rank_words(ranks: Collection[int]) -> str:
    """``rank 1`` or ``ranks 0-3, 7``."""
    from psmkit.report.layout import ranges

    return f"{plural(len(ranks), 'rank')} {ranges(set(ranks))}"
