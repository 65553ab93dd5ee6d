#!/usr/bin/env bash
# Unpacks the arm64 packages of tests/packages-arm-sysroot.txt, and all that they depend on, into
# build/arm-sysroot, for common/cmake/arm64.cmake; does nothing when they are there.
# usage: tests/arm_sysroot.sh
# The system stays as it is: apt-get works on lists, a cache and a state of its own, in which nothing
# is installed. Making arm64 a second architecture of the system instead would ask for root and for
# -dev packages that can be installed twice, and every later installation would feel it.
set -euo pipefail
cd "$(dirname "$0")/.."

list=tests/packages-arm-sysroot.txt
sysroot=$PWD/build/arm-sysroot
apt=$PWD/build/arm-apt
stamp=$sysroot/.packages

if cmp -s "$list" "$stamp"; then
  exit 0
fi
rm -rf "$sysroot" "$apt"
mkdir -p "$sysroot" "$apt"/state/lists/partial "$apt"/cache/archives/partial
: >"$apt/status"
mapfile -t packages < <(sed -e 's/#.*//' -e 's/[[:space:]]//g' -e '/^$/d' -- "$list")
# Where packages come from, and the keys, are the system's.
options=(-q -o "Dir::State=$apt/state" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache"
  -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=)

echo "Unpacking Debian packages for arm64: ${packages[*]}"
if ! { apt-get "${options[@]}" update && apt-get "${options[@]}" -y --no-install-recommends \
  --download-only install "${packages[@]}"; } >"$apt/log" 2>&1; then
  tail -n 15 "$apt/log" >&2
  echo "arm_sysroot: apt-get could not download ${packages[*]} for arm64 (its last lines are above)." >&2
  echo "  Check that the sources in /etc/apt have arm64 packages of Debian 12, then run this again." >&2
  exit 1
fi
for archive in "$apt"/cache/archives/*.deb; do
  dpkg-deb -x "$archive" "$sysroot"
done
rm -rf "$apt"
cp "$list" "$stamp"
