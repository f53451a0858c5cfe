#!/usr/bin/env bash
# Runs every check of the project on a machine that may have nothing but a Rust toolchain: format, lints,
# all tests, the benchmark programs' own tests. Installs what is missing by the package manager.
set -euo pipefail
cd "$(dirname "$0")"

say() { printf '\n== %s\n' "$*"; }

# need COMMAND PACKAGE...: installs Debian packages when a command is missing.
need() {
    local command=$1
    shift
    command -v "$command" >/dev/null && return
    say "installing $*"
    if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
        echo "error: $command is missing. Install it (on Debian: sudo apt-get install $*) and run ./test.sh again." >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

need cargo cargo
need cc gcc libc6-dev
need curl curl
need python3 python3 python3-venv
python3 -c 'import venv, ensurepip' 2>/dev/null || need python3-venv-is-missing python3-venv

say "format"
cargo fmt --all -- --check

say "lints"
cargo clippy --workspace --all-targets -- -D warnings

say "build"
cargo build --workspace --all-targets

say "tests"
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --workspace
else
    cargo test --workspace
fi

say "all checks passed"
