#!/bin/bash
# gvisor.sh VENV [PROGRAM CONFIGURATION PIDFILE]: gVisor's runsc is a runtime of the engine when
# this ends well, and takes up our profiles of system calls. Where the engine has it so already
# nothing is done. Debian's backports have a
# runsc that works; the one of the release itself has no systrap. Platform kvm is not used: it
# hangs where virtualisation is nested.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
venv=$1
program=${2:-/usr/local/bin/runsc}
configuration=${3:-/etc/docker/daemon.json}
pidfile=${4:-/var/run/docker.pid}
mend="install gVisor's runsc and name it under \"runtimes\" in $configuration, with the arguments --platform=systrap --network=none --oci-seccomp, and send the engine's process the signal HUP"

# Prints "sound" where the engine has the runtime as it should be, "unfiltered" where it lacks
# --oci-seccomp, "missing" where there is none; says why there is no engine.
look() {
    "$venv/bin/python" - <<'END'
import asyncio, sys
from executor.errors import ExecutorError
from executor.sandbox.engine import Engine
from executor.settings import Settings

async def ask() -> None:
    async with await Engine.connect(Settings.load()) as engine:
        facts = engine.facts
    if "runsc" not in facts.runtimes:
        print("missing")
    else:
        print("unfiltered" if facts.ignores_seccomp("runsc") else "sound")

try:
    asyncio.run(ask())
except ExecutorError as error:
    sys.exit(str(error))
END
}

is_sound() { [ "$(look)" = sound ]; }

# The backports of the archive that this machine uses already, in lists of their own.
download() {
    local place release options
    place=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | head -n 1)
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    if [ -z "$place" ] || [ -z "$release" ]; then
        say "no package archive of a named release is configured here"
        return 1
    fi
    mkdir -p lists/partial
    printf 'deb [signed-by=%s] %s %s-backports main\n' \
        /usr/share/keyrings/debian-archive-keyring.gpg "$place" "$release" >source.list
    options=(-qq -o "Dir::Etc::sourcelist=$PWD/source.list" -o Dir::Etc::sourceparts=-
        -o "Dir::State::lists=$PWD/lists" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update >&2 && apt-get "${options[@]}" download runsc >&2
}

install_program() {
    command -v apt-get >/dev/null && command -v dpkg >/dev/null ||
        die "gVisor is fetched from Debian's archive, which needs apt-get; $mend"
    say "installing gVisor as $program"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    (cd "$work" && download && dpkg -x runsc_*.deb files) || die "gVisor can't be had here; $mend"
    install -D -m 755 "$work/files/usr/bin/runsc" "$program"
}

# What else is in the engine's configuration stays.
register() {
    "$venv/bin/python" - "$configuration" "$program" <<'END'
import json, os, sys
path, program = sys.argv[1:]
os.makedirs(os.path.dirname(path), exist_ok=True)
try:
    with open(path) as file:
        configuration = json.loads(file.read() or "{}")
    if not isinstance(configuration, dict):
        raise ValueError("it is no JSON object")
except FileNotFoundError:
    configuration = {}
except (OSError, ValueError) as error:
    sys.exit(f"executor: {path} can't be read, so nothing is changed: {error}")
# Without its own --network=none runsc refuses kernels on which it takes every network
# namespace for the machine's; without --oci-seccomp it leaves profiles of system calls unused,
# and a command can make a user namespace and write what is mounted read-only.
runtimes = configuration.setdefault("runtimes", {})
entry = runtimes.setdefault("runsc", {"path": program})
given = entry.get("runtimeArgs") or ["--platform=systrap", "--network=none"]
kept = [one for one in given if one.lstrip("-").partition("=")[0] != "oci-seccomp"]
entry["runtimeArgs"] = [*kept, "--oci-seccomp"]
with open(path + ".new", "w") as file:
    json.dump(configuration, file, indent=2)
    file.write("\n")
os.replace(path + ".new", path)
END
}

# Runtimes are read anew on this signal; containers are not touched.
reload_engine() {
    local pid
    pid=$(cat "$pidfile" 2>/dev/null) || pid=
    if [ -z "$pid" ] || ! kill -HUP "$pid" 2>/dev/null; then
        die "the engine's process is not known ($pidfile); restart the engine, it then has the runtime runsc"
    fi
    for _ in $(seq 20); do
        is_sound && return
        sleep 0.3
    done
    die "the engine does not take up the runtime runsc; see $configuration and the engine's log"
}

there=$(look) || die "gVisor is added to an engine that answers; start one (\`make engine\`)"
[ "$there" != sound ] || exit 0
[ "$(id -u)" = 0 ] || die "adding a runtime to the engine needs root; $mend"
[ "$there" = unfiltered ] || [ -x "$program" ] || install_program
say "naming the runtime runsc with --oci-seccomp in $configuration"
register
reload_engine
say "the engine has the runtime runsc, with --oci-seccomp"
