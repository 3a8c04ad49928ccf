#!/bin/bash
# images.sh VENV: builds what is missing; installs mmdebstrap where that is needed.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
venv=$1

if "$venv/bin/executor" images build >/dev/null; then
    exit 0
fi
if command -v mmdebstrap >/dev/null || command -v debootstrap >/dev/null; then
    exit 1
fi
packages=(mmdebstrap)
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || packages+=(debian-archive-keyring)
apt_install "the images are made by mmdebstrap; run \`apt-get install ${packages[*]}\` as root, then try again" "${packages[@]}"
"$venv/bin/executor" images build >/dev/null
