#!/usr/bin/env bash
# Runs every check of the project on a machine that may have nothing but a Rust toolchain: format, lints and
# all tests. Installs what is missing from the distribution's packages.
set -euo pipefail
cd "$(dirname "$0")"

say() { printf '\n== %s\n' "$*"; }

install() {
    say "installing $*"
    if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
        echo "error: $* must be installed first; on Debian: sudo apt-get install $*" >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

command -v cargo >/dev/null || { echo "error: there is no Rust toolchain; install one with rustup" >&2; exit 1; }
command -v cc >/dev/null || install gcc libc6-dev
command -v curl >/dev/null || install curl
python3 -c 'import venv, ensurepip' 2>/dev/null || install python3 python3-venv
# The dashboard's tests drive a real browser.
command -v node >/dev/null && command -v npm >/dev/null || install nodejs npm
command -v chromium >/dev/null || install chromium
# Tests of wrong clocks move the clock of a server.
command -v faketime >/dev/null || install faketime
if ! command -v postgres >/dev/null && ! compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; then
    # Tests start servers of their own, so Debian need not make and start one with the package.
    settings=/etc/postgresql-common/createcluster.conf
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ ! -e $settings ]; then
        mkdir -p "$(dirname $settings)"
        echo 'create_main_cluster = false' >$settings
    fi
    install postgresql
fi
# The same for these, which Debian starts as soon as they are installed unless the system's policy says no.
servers=()
command -v redis-server >/dev/null || servers+=(redis-server)
command -v rabbitmq-server >/dev/null || [ -x /usr/sbin/rabbitmq-server ] || servers+=(rabbitmq-server)
command -v prometheus >/dev/null && command -v promtool >/dev/null || servers+=(prometheus)
if [ ${#servers[@]} -gt 0 ]; then
    policy=/usr/sbin/policy-rc.d
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ ! -e $policy ]; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
        install "${servers[@]}"
        rm -f $policy
        trap - EXIT
    else
        install "${servers[@]}"
    fi
fi

say "format"
cargo fmt --all -- --check

say "lints"
cargo clippy --workspace --all-targets -- -D warnings

say "tests"
# The binary that the whole-system suites run.
cargo build -p redrive
# One test fills a small disk, which only root can mount. Without root it is left out, and said so.
full_disk=a_full_disk_refuses_loudly_and_heals_by_itself
left_out=()
if [ "$(id -u)" != 0 ]; then
    echo "not root: $full_disk is left out; run 'sudo ./test.sh' for it too"
    left_out=(1)
fi
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --profile full --workspace ${left_out:+-E "not test($full_disk)"}
else
    cargo test --workspace ${left_out:+-- --skip "$full_disk"}
fi

say "all checks passed"
