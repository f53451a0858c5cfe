#!/usr/bin/env bash
# Checks the project on a machine that may have nothing but a Rust toolchain, and installs what is missing from the
# distribution's packages.
#
#   ./test.sh quick      format, lints and the tests of the inner loop
#   ./test.sh full       the same and the slow suites: what CI runs; the default
#   ./test.sh extended   everything: also suites that take minutes, documentation, the smallest build, the workflows
set -euo pipefail
cd "$(dirname "$0")"
began=$SECONDS
part_began=$SECONDS
part=

# Ends the part before with its time, and begins another.
say() {
    if [ -n "$part" ]; then printf '== %s took %d s\n' "$part" $((SECONDS - part_began)); fi
    part=$1
    part_began=$SECONDS
    if [ -n "$part" ]; then printf '\n== %s\n' "$part"; fi
}

mode=${1:-full}
case $mode in
quick | full | extended) ;;
*)
    echo "error: there is no mode '$mode'; use quick, full or extended" >&2
    exit 2
    ;;
esac

install() {
    echo "installing $*"
    if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
        echo "error: $* must be installed first; on Debian: sudo apt-get install $*" >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

say "installing what is missing"
command -v cargo >/dev/null || { echo "error: there is no Rust toolchain; install one with rustup" >&2; exit 1; }
# Where the pinned toolchain cannot be downloaded, an installed one of the same version serves.
if command -v rustup >/dev/null && ! rustc --version >/dev/null 2>&1; then
    pinned=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
    for toolchain in $(rustup toolchain list | cut -d' ' -f1); do
        if RUSTUP_TOOLCHAIN=$toolchain rustc --version 2>/dev/null | grep -q " $pinned "; then
            export RUSTUP_TOOLCHAIN=$toolchain
        fi
    done
    rustc --version >/dev/null || { echo "error: install the toolchain: rustup toolchain install $pinned" >&2; exit 1; }
fi
command -v cc >/dev/null || install gcc libc6-dev
command -v curl >/dev/null || install curl
python3 -c 'import venv, ensurepip' 2>/dev/null || install python3 python3-venv
# The dashboard's tests drive a real browser.
command -v node >/dev/null && command -v npm >/dev/null || install nodejs npm
# Distributions may have an older Node.js than the linters and generators of the API document need. The npm package `node`
# contains the program.
node_needed=20.19.0
node_version=$(node -p process.versions.node)
if [ "$(printf '%s\n' $node_needed "$node_version" | sort -V | head -n 1)" != $node_needed ]; then
    echo "installing Node.js 22, since $node_version is older than $node_needed"
    npm install --silent --global node@22 || { echo "error: install Node.js $node_needed or newer" >&2; exit 1; }
    hash -r
fi
command -v chromium >/dev/null || install chromium
# Extended tests move the clock of a server, run the receivers of the documentation in their languages, and build and install
# the files of a release.
if [ "$mode" = extended ]; then
    extra=()
    for tool in faketime:faketime go:golang-go ruby:ruby php:php-cli java:default-jdk-headless buildah:buildah \
        podman:podman runc:runc lintian:lintian mmdebstrap:mmdebstrap objcopy:binutils systemd-analyze:systemd dpkg-deb:dpkg file:file; do
        command -v "${tool%%:*}" >/dev/null || extra+=("${tool##*:}")
    done
    # mmdebstrap verifies packages with these keys.
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || extra+=(debian-archive-keyring)
    [ ${#extra[@]} = 0 ] || install "${extra[@]}"
fi
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

say "build with lints"
# Clippy compiles our crates here, so that nothing is compiled once for its lints and once more for the tests.
driver=$(rustc --print sysroot)/bin/clippy-driver
if [ -x "$driver" ]; then
    export RUSTC_WORKSPACE_WRAPPER=$driver CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__
else
    echo "error: clippy is not installed; run 'rustup component add clippy'" >&2
    exit 1
fi
# The binary that the whole-system suites run, and every target: benchmarks and fuzz targets have lints too.
cargo build --profile ci --workspace --all-targets

say "tests"
# One test fills a small disk, which only root can mount. Without root it is left out, and said so.
full_disk=full_disk_rejects_publishes_and_recovers_by_itself
left_out=()
if [ "$(id -u)" != 0 ]; then
    echo "not root: $full_disk is left out; run 'sudo ./test.sh' for it too"
    left_out=(1)
fi
# Most tests wait for servers and timers most of the time.
threads=$(($(nproc 2>/dev/null || sysctl -n hw.ncpu) * 2))
profile=$mode
[ "$mode" != quick ] || profile=default
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --cargo-profile ci --profile "$profile" --workspace --test-threads "$threads" \
        ${left_out:+-E "not test($full_disk)"}
else
    skip=()
    [ "$mode" = extended ] || skip+=(--skip extended::)
    [ "$mode" != quick ] || skip+=(--skip slow::)
    cargo test --profile ci --workspace -- "${skip[@]}" ${left_out:+--skip "$full_disk"}
fi

say "examples in documentation"
cargo test --profile ci --doc -p redrive-core

if [ "$mode" = extended ]; then
    say "documentation of the code"
    RUSTDOCFLAGS=-Dwarnings cargo doc --no-deps --workspace
    say "book"
    scripts/build-book.sh
    say "prices of schemas and filters"
    cargo bench -p redrive-core --bench prices
    say "smallest build"
    cargo check -p redrive --no-default-features
    say "workflows"
    scripts/check-workflows.sh
fi

say ""
printf '\n== all checks passed in %d s\n' $((SECONDS - began))
