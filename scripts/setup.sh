#!/bin/bash
# setup.sh VENV: makes the virtual environment out of requirements.lock.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
venv=$1

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

find_python() {
    local candidate found=
    for candidate in ${PYTHON:-} python3 python3.11 python3.12 python3.13 python3.14; do
        is_new_enough "$candidate" || continue
        if has_venv "$candidate"; then
            echo "$candidate"
            return
        fi
        found=${found:-$candidate}
    done
    echo "$found"
}

python=$(find_python)
[ -n "$python" ] || die "Python 3.11 or newer is needed and was not found; install it, or name it: make PYTHON=/path/to/python3"
if ! has_venv "$python"; then
    package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    apt_install "$python has no venv module; run \`apt-get install $package\` as root, then try again" "$package"
fi

if ! [ -x "$venv/bin/python" ] || ! is_new_enough "$venv/bin/python"; then
    say "making $venv with $("$python" --version)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi
say "installing the Python packages of requirements.lock"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --require-hashes -r requirements.lock
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
