#!/bin/sh
# Makes sure that gdb and eu-stack are there, for the tests that look into live processes. As root it installs Debian's packages.
set -eu
command -v gdb > /dev/null && command -v eu-stack > /dev/null && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "debuggers.sh: no gdb and eu-stack: install Debian's packages gdb and elfutils" >&2
    exit 1
fi
apt-get -qq update > /dev/null
DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends gdb elfutils > /dev/null
