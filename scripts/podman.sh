#!/bin/bash
# podman.sh: Podman and runc are installed when this ends well. Its tests start a service of
# their own, with storage of its own. runc, since crun refuses machines whose control groups are
# of both versions at once.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
mend="install Podman and runc (on Debian and Ubuntu: \`apt-get install podman runc\` as root)"

missing=()
for program in podman runc; do
    command -v "$program" >/dev/null || [ -x "/usr/sbin/$program" ] || missing+=("$program")
done
[ ${#missing[@]} = 0 ] || apt_install "Podman can't be installed here; $mend" "${missing[@]}"
