#!/bin/sh
# Set-up steps of the Makefile. `venv WHAT`: build .venv and install WHAT (a pip requirement of this folder) into it.
# `system`: what the tests need beyond Python: Chromium and PostgreSQL, through apt where that is permitted.
set -eu

say() { printf '%s\n' "$*"; }
stop() { printf '%s\n' "$*" >&2; exit 1; }

# Prints how to become root ("" when we are), or fails where apt may not be used.
root_prefix() {
    [ "${APT:-yes}" != no ] && command -v apt-get >/dev/null 2>&1 || return 1
    if [ "$(id -u)" = 0 ]; then return 0; fi
    command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null && printf 'sudo -n'
}

apt_install() {
    as_root=$(root_prefix) || return 1
    say "Installing $* with apt …"
    log=$(mktemp)
    if { $as_root apt-get update -qq &&
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@"; } >"$log" 2>&1; then
        rm -f "$log"
    else
        tail -n 5 "$log" >&2
        rm -f "$log"
        return 1
    fi
}

venv() {
    python=${PYTHON:-python3}
    command -v "$python" >/dev/null 2>&1 || stop "$python is not on the path: install Python 3.11 or newer, or say PYTHON=…"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        stop "Sfumato needs Python 3.11 or newer; $python is $("$python" -V 2>&1). Say PYTHON=… to use another one."
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then # Debian packs these apart
            version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
            apt_install "python$version-venv" || stop "Python's venv is missing. Install it (Debian, Ubuntu: apt install python$version-venv), then run make again."
        fi
        "$python" -m venv --clear .venv
    fi
    say "Installing packages into .venv … (a minute or two the first time)"
    # --no-compile: the little that is used is compiled when it is first imported, which is far less than all of it.
    .venv/bin/python -m pip install --no-compile -qq --disable-pip-version-check --constraint constraints.txt --editable "$1"
}

has_chromium() {
    [ -n "${SFUMATO_CHROMIUM:-}" ] || command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 ||
        ls "${PLAYWRIGHT_BROWSERS_PATH:-$HOME/.cache/ms-playwright}"/chromium-*/chrome-linux*/chrome >/dev/null 2>&1
}

has_postgres() { command -v initdb >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; }

system() {
    if ! has_chromium; then
        if grep -q '^ID=ubuntu' /etc/os-release 2>/dev/null; then # its chromium package only points to a snap
            as_root=$(root_prefix) && $as_root .venv/bin/playwright install-deps chromium >/dev/null 2>&1 || true
            .venv/bin/playwright install chromium >/dev/null 2>&1 || true
        else
            apt_install chromium || true
        fi
        has_chromium || say "No Chromium, and it could not be installed: the browser journeys are skipped."
    fi
    if ! has_postgres; then
        apt_install postgresql || true
        has_postgres || say "No PostgreSQL, and it could not be installed: its tests are skipped."
    fi
}

case "${1:-}" in
    venv) venv "$2" ;;
    system) system ;;
    *) stop "usage: setup.sh venv REQUIREMENT | system" ;;
esac
