"""``psmkit config``: Print the options to compile and link against libpsm."""

from __future__ import annotations

import os
from pathlib import Path

import click

from psmkit.model.errors import PsmkitError

__all__ = ["command", "tree"]


class _NotBuiltError(PsmkitError):
    pass


def tree() -> Path:
    """The folder with ``lib`` and ``include`` of libpsm. PSM_DIR points elsewhere, for other builds of it.

    Raises:
        PsmkitError: it was not built.
    """
    place = Path(os.environ.get("PSM_DIR") or Path(__file__).parents[1] / "psm").absolute()
    if not (place / "lib" / "libpsm.so.0").exists():
        raise _NotBuiltError(
            f"no libpsm in {place}: build it with `make setup`, or install a psmkit wheel for this system"
        )
    return place


@click.command("config")
@click.option("--pkg-config", "what", flag_value="pkg-config", help="The folder for PKG_CONFIG_PATH.")
@click.option("--cmake", "what", flag_value="cmake", help="The folder for psm_DIR, for find_package(psm).")
@click.option("--cflags", "what", flag_value="cflags", help="Options for the compiler.")
@click.option("--libs", "what", flag_value="libs", help="Options for the linker.")
@click.option("--prefix", "what", flag_value="prefix", default=True, help="The folder with lib and include.  [default]")
def command(what: str) -> None:
    """Say where libpsm is: cc x.c $(PKG_CONFIG_PATH=$(psmkit config --pkg-config) pkg-config --cflags --libs psm)"""
    place = tree()
    lib = place / "lib"
    click.echo(
        {
            "pkg-config": str(lib / "pkgconfig"),
            "cmake": str(lib / "cmake" / "psm"),
            "cflags": f"-I{place / 'include'}",
            "libs": f"-L{lib} -Wl,-rpath,{lib} -lpsm",
            "prefix": str(place),
        }[what]
    )
