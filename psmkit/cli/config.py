"""``psmkit config``: Print the options to compile and link against libpsm."""

from __future__ import annotations

import os
from pathlib import Path

import click

from psmkit.cli.command import Command
from psmkit.model.errors import PsmkitError

__all__ = ["command", "examples", "logs", "tree"]

_PACKAGE = Path(__file__).parents[1]


class _NotBuiltError(PsmkitError):
    pass


def tree() -> Path:
    """The folder with ``lib`` and ``include`` of libpsm. PSM_DIR names another build.

    Raises:
        PsmkitError: it was not built.
    """
    place = Path(os.environ.get("PSM_DIR") or Path(__file__).parents[1] / "psm").absolute()
    if not (place / "lib" / "libpsm.so").exists():
        raise _NotBuiltError(
            f"no libpsm in {place}: build it with `make setup`, or install a psmkit wheel for this system"
        )
    return place


def examples() -> Path:
    """The folder of the examples and task files: in a wheel part of the package, in a checkout beside it.

    Raises:
        PsmkitError: they are not there.
    """
    return _first(_PACKAGE / "examples", _PACKAGE.parent / "examples")


def logs() -> Path:
    """The folder of the logs of ``psmkit demo``.

    Raises:
        PsmkitError: they are not there.
    """
    return _first(_PACKAGE / "examples" / "logs", _PACKAGE.parent / "tests" / "data" / "logs")


def _first(*places: Path) -> Path:
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        raise _NotBuiltError(f"no folder {places[0]}: this installation of psmkit has no examples")
    return found


@click.command(
    "config",
    cls=Command,
    examples=(
        "psmkit config --cflags               # the options for cc",
        "psmkit config --prefix",
        "psmkit config --examples             # your own transport, task files, cases",
        "psmkit config --plugins              # the folder for LD_LIBRARY_PATH in which NCCL finds our plugins",
    ),
)
@click.option("--pkg-config", "what", flag_value="pkg-config", help="Print the folder for PKG_CONFIG_PATH.")
@click.option(
    "--cmake", "what", flag_value="cmake", help="Print the folder for psm_DIR, which find_package(psm) reads."
)
@click.option("--cflags", "what", flag_value="cflags", help="Print the options for the compiler.")
@click.option("--libs", "what", flag_value="libs", help="Print the options for the linker.")
@click.option(
    "--plugins",
    "what",
    flag_value="plugins",
    help="Print a folder for LD_LIBRARY_PATH, in which NCCL finds the plugins without a setting.",
)
@click.option("--examples", "what", flag_value="examples", help="Print the folder of the examples and task files.")
@click.option(
    "--prefix", "what", flag_value="prefix", default=True, help="Print the folder with lib and include.  [default]"
)
def command(what: str) -> None:
    """Print where libpsm is, and the options to compile and link against it.

    With pkg-config: cc x.c $(PKG_CONFIG_PATH=$(psmkit config --pkg-config) pkg-config --cflags --libs psm)
    """
    if what == "examples":
        click.echo(str(examples()))
        return
    place = tree()
    lib = place / "lib"
    click.echo(
        {
            "pkg-config": str(lib / "pkgconfig"),
            "cmake": str(lib / "cmake" / "psm"),
            "cflags": f"-I{place / 'include'}",
            "plugins": str(lib / "nccl-plugins"),
            "libs": f"-L{lib} -Wl,-rpath,{lib} -lpsm",
            "prefix": str(place),
        }[what]
    )
