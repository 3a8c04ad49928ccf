#!/bin/bash
# engine.sh VENV: a Docker engine answers when this ends well. Where one answers already
# nothing is done; otherwise Debian's docker.io is installed and started, aloud.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
venv=$1
log=/var/log/executor-dockerd.log
mend="install and start Docker (on Debian and Ubuntu: \`apt-get install docker.io\` as root), or name an engine in DOCKER_HOST, then try again"

# Prints why no engine can be used; nothing when one can.
fault() {
    "$venv/bin/python" - <<'END'
import asyncio
from executor.errors import ExecutorError
from executor.sandbox.engine import Engine
from executor.settings import Settings

async def ask() -> None:
    async with await Engine.connect(Settings.load()):
        pass

try:
    asyncio.run(ask())
except ExecutorError as error:
    print(error)
END
}

# Polls until the engine answers or the seconds are over.
answers_within() {
    local end=$((SECONDS + $1))
    while [ -n "$(fault)" ]; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.3
    done
}

start_directly() {
    say "starting dockerd $* in the background; it writes to $log"
    as_root sh -c 'setsid dockerd "$@" >>'"$log"' 2>&1 </dev/null &' sh "$@"
}

why=$(fault)
[ -n "$why" ] || exit 0
say "$why"
[ -z "${DOCKER_HOST:-}" ] || exit 1
if [ -S /var/run/docker.sock ] && ! [ -w /var/run/docker.sock ]; then
    exit 1
fi
as_root true || die "starting an engine needs root; $mend"
command -v dockerd >/dev/null || PATH=$PATH:/usr/sbin:/sbin
command -v dockerd >/dev/null || apt_install "Docker can't be installed here; $mend" docker.io
hash -r

if ! answers_within 2; then
    if [ -d /run/systemd/system ]; then
        say "starting the service docker"
        as_root systemctl start docker || true
    else
        start_directly
    fi
    if ! answers_within 30; then
        [ -d /run/systemd/system ] && die "the service docker does not start (see \`journalctl -u docker\`); $mend"
        # Boxes have no network, so an engine that may not touch the firewall will do.
        as_root sh -c 'kill "$(cat /var/run/docker.pid)"' 2>/dev/null || true
        start_directly --iptables=false --ip6tables=false --bridge=none
        answers_within 30 ||
            die "dockerd does not start here (see $log: $(tail -n 1 "$log" | cut -c 1-300)); $mend"
    fi
fi
say "the engine answers"
