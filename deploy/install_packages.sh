#!/usr/bin/env bash
# Installs the Debian packages that the given lists name; does nothing when all of them are there.
# usage: deploy/install_packages.sh LIST.txt...
# A list has one package a line; what follows '#' is a comment.
set -euo pipefail

if [[ $# -eq 0 ]]; then
  echo "usage: deploy/install_packages.sh LIST.txt..." >&2
  exit 2
fi
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install_packages: this is no Debian system (no dpkg-query or apt-get here)." >&2
  echo "  Install what these lists name by other means: $*" >&2
  exit 1
fi

missing=()
while read -r package _; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ "$state" == installed ]] || missing+=("$package")
done < <(sed -e 's/#.*//' -e '/^[[:space:]]*$/d' -- "$@")
if [[ ${#missing[@]} -eq 0 ]]; then
  exit 0
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "install_packages: these packages are missing: ${missing[*]}" >&2
    echo "  You are not root and there is no sudo. As root, run:" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

# apt-get's lock is waited for, so that two runs at once do not fail.
install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 -q -y \
    install --no-install-recommends "${missing[@]}"
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "Installing ${#missing[@]} Debian packages: ${missing[*]}"
# The package lists of a fresh system are empty or old: fetch them, then install.
if ! { "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=600 -q update && install; } >"$log" 2>&1; then
  tail -n 15 "$log" >&2
  echo "install_packages: apt-get could not install ${missing[*]} (its last lines are above)." >&2
  echo "  Cairn is made for Debian 12. Check the network and /etc/apt, then run this again." >&2
  exit 1
fi
