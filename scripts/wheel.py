"""Build the wheel that is published: wheel.py [--out DIR] [--again].

It runs with CPython 3.11 and every later one, and with glibc 2.28 and every later one. The same sources make the same file: `--again` builds a copy of
them in another folder, and compares. Beside the metadata stand the list of its parts (sboms/psmkit.cdx.json) and the licences of those that are not
psmkit's.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).parents[1]
GLIBC = "2.28"
#: A build folder of one name, whatever the sources are called. `make clean` removes it.
BUILD = "build/wheel"
#: Licences that go with what zig links: zig's own, and glibc's.
_LICENCES = ("licenses/ziglang/LICENSE", "licenses/ziglang/lib/libc/glibc/LICENSES")


class WheelError(Exception):
    """Why there is no wheel."""


def _run(command: list[str], *, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=3600)
    if done.returncode:
        raise WheelError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def epoch() -> str:
    """The time of all files in the wheel: SOURCE_DATE_EPOCH, else that of the commit, else 1980."""
    if os.environ.get("SOURCE_DATE_EPOCH"):
        return os.environ["SOURCE_DATE_EPOCH"]
    try:
        return _run(["git", "log", "-1", "--format=%ct"]).strip()
    except (WheelError, OSError):
        return "315532800"


def _compiler(folder: Path) -> Path:
    """zig's C compiler as one command, for CMake. It links with the interface of an old glibc."""
    path = folder / "zig-cc"
    path.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m ziglang cc -target {os.uname().machine}-linux-gnu.{GLIBC} "$@"\n'
    )
    path.chmod(0o755)
    return path


def _notices(folder: Path, source: Path) -> None:
    """The list of parts, and their licences."""
    (folder / "sboms").mkdir(parents=True)
    _run([sys.executable, str(source / "scripts" / "sbom.py"), str(folder / "sboms" / "psmkit.cdx.json")])
    found = [file for file in distribution("ziglang").files or [] if str(file).endswith(_LICENCES)]
    if len(found) != len(_LICENCES):
        raise WheelError(f"ziglang has not the licences {' and '.join(_LICENCES)}: it has {found}")
    for file in found:
        target = folder / "licenses" / "built-in" / str(file).partition("licenses/")[2].replace("/", "-")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(str(file.locate()), target)


def build(source: Path, out: Path) -> Path:
    """Build the wheel of these sources."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        _notices(work / "notices", source)
        shutil.rmtree(source / BUILD, ignore_errors=True)
        # By default Zig adds checks for undefined behaviour. The maps keep the paths of this build out of the libraries.
        flags = (
            f"-fno-sanitize=undefined -g0 -ffile-prefix-map={source / BUILD}=build -ffile-prefix-map={source}=psmkit"
        )
        env = {name: value for name, value in os.environ.items() if not name.startswith("CMAKE_")}
        env |= {
            "CC": str(_compiler(work)),
            "CFLAGS": flags,
            "SOURCE_DATE_EPOCH": epoch(),
            "ZIG_GLOBAL_CACHE_DIR": str(ROOT / "build" / "zig"),
            "ZIG_LOCAL_CACHE_DIR": str(ROOT / "build" / "zig"),
        }
        _run(
            [
                sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-build-isolation", "--no-deps",
                f"--config-settings=build-dir={BUILD}",
                f"--config-settings=cmake.define.PSMKIT_NOTICES={work / 'notices'}",
                "--wheel-dir", str(work / "plain"), str(source),
            ],
            env=env,
        )  # fmt: skip
        (plain,) = (work / "plain").glob("*.whl")
        # It checks which symbols of which glibc the libraries need, and names the wheel after the oldest that has them.
        platform = f"manylinux_{GLIBC.replace('.', '_')}_{os.uname().machine}"
        tools = {**env, "PATH": f"{Path(sys.executable).parent}:{env.get('PATH', os.defpath)}"}
        _run(
            [sys.executable, "-m", "auditwheel", "repair", "--only-plat", "--plat", platform, "--wheel-dir", str(work / "repaired"), str(plain)],
            env=tools,
        )  # fmt: skip
        (made,) = (work / "repaired").glob("*.whl")
        _run([sys.executable, "-m", "abi3audit", "--strict", str(made)], env=tools)
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(made, out / made.name))


def _copy(folder: Path) -> Path:
    """The sources under another name, without what builds have left there."""
    names = _run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
            shutil.copymode(ROOT / name, folder / name)
    return folder


def main() -> int:
    """Build, and say what it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="DIR", help="where the wheel goes: dist")
    parser.add_argument("--again", action="store_true", help="build a copy of the sources, too: both must be the same")
    given = parser.parse_args()
    try:
        # In a folder of one name, where zig finds again what it compiled before.
        shutil.rmtree(ROOT / "build" / "sources", ignore_errors=True)
        first = build(_copy(ROOT / "build" / "sources"), given.out)
        digest = hashlib.sha256(first.read_bytes()).hexdigest()
        print(f"{first}: {first.stat().st_size / 1e6:.1f} MB, sha256 {digest}")
        if "OWNER" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]:
            print("OWNER in the URLs of pyproject.toml is no account: replace it before you publish the wheel")
        if given.again:
            with tempfile.TemporaryDirectory(prefix="another-name-of-the-") as name:
                second = build(_copy(Path(name) / "same-sources"), Path(name) / "dist")
                if hashlib.sha256(second.read_bytes()).hexdigest() != digest:
                    kept = first.with_suffix(".again.whl")
                    shutil.move(second, kept)
                    raise WheelError(f"the same sources made two wheels: compare {first} and {kept}")
            print("a second build of the same sources, in another folder, made the same file")
    except WheelError as error:
        print(f"wheel.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
