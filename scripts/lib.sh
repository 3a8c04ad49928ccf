# Shared by the scripts beside it.

say() { printf '%s\n' "executor: $*" >&2; }

die() {
    say "$*"
    exit 1
}

# Runs a command as root: directly, or by sudo where that asks no password of a script.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
        sudo "$@"
    else
        return 126
    fi
}

# apt_install MEND PACKAGE…: installs Debian packages, or ends with one sentence.
apt_install() {
    local mend=$1
    shift
    command -v apt-get >/dev/null || die "$mend"
    say "installing $* with apt-get"
    local log
    log=$(mktemp)
    if ! as_root env DEBIAN_FRONTEND=noninteractive sh -c '
        apt-get -qq -y --no-install-recommends install "$@" ||
            { apt-get -qq update && apt-get -qq -y --no-install-recommends install "$@"; }
        ' sh "$@" >"$log" 2>&1 </dev/null; then
        tail -n 5 "$log" >&2
        rm -f "$log"
        die "$mend"
    fi
    rm -f "$log"
}
