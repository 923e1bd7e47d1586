#!/bin/sh
# Downloads a program of a Debian package into build/tools, without root, from the package sources of this machine.
#   debian_tool.sh PACKAGE [PROGRAM]
# Prints the path of the program: the installed one if it exists. A program is downloaded once.
set -eu
package=$1
program=${2:-$1}
tools=$PWD/build/tools

if path=$(command -v "$program"); then
    echo "$path"
    exit
fi
path=$tools/usr/bin/$program
if [ ! -x "$path" ]; then
    for needed in apt-get dpkg; do
        command -v $needed > /dev/null || { echo "debian_tool.sh: no $program and no $needed to get it with: install $package" >&2; exit 1; }
    done
    mkdir -p "$tools"
    work=$(mktemp -d "$tools/.fetch-XXXXXX")
    trap 'rm -rf "$work"' EXIT
    cd "$work"
    options="-qq -o APT::Sandbox::User=root -o Acquire::Retries=1 -o Acquire::http::Timeout=20"
    # Sandbox: as root, apt downloads as another user, who cannot enter this folder.
    if ! apt-get $options download "$package" > log 2>&1; then
        # A fresh machine has no package lists, and only root can write to apt's folder: use lists of our own.
        mkdir -p state/lists/partial cache/archives/partial
        set -- $options -o Dir::State="$work/state" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$work/cache"
        { apt-get "$@" update && apt-get "$@" download "$package"; } > log 2>&1 || {
            echo "debian_tool.sh: $package was not found by apt: $(tail -n 1 log)" >&2
            exit 1
        }
    fi
    dpkg -x ./"$package"_*.deb unpacked
    [ -x "unpacked/usr/bin/$program" ] || { echo "debian_tool.sh: $package has no /usr/bin/$program" >&2; exit 1; }
    mkdir -p "$tools/usr"
    cp -R unpacked/usr/. "$tools/usr"
fi
echo "$path"
