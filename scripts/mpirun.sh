#!/bin/sh
# Makes sure that mpirun is there, for the tests of `psmkit record` below it. As root it installs Debian's package.
set -eu
command -v mpirun > /dev/null && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "mpirun.sh: no mpirun: install Debian's package openmpi-bin" >&2
    exit 1
fi
apt-get -qq update > /dev/null
DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends openmpi-bin > /dev/null
