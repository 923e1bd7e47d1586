#!/bin/sh
# Makes sure that Chromium and its driver are there, for the tests that click through pages. As root it installs Debian's packages.
set -eu
command -v chromium > /dev/null && command -v chromedriver > /dev/null && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "browser.sh: no chromium and chromedriver: install Debian's packages chromium and chromium-driver" >&2
    exit 1
fi
apt-get -qq update > /dev/null
DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium chromium-driver > /dev/null
