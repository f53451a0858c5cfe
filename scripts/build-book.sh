#!/usr/bin/env bash
# Builds the documentation into target/book and checks it: pages and links of the sources, warnings of mdBook, links and
# anchors of the built pages. Installs the pinned mdBook into target/tools if it is not there, which takes minutes.
#
#   scripts/build-book.sh
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.5.4
tools=target/tools
book=target/book

python3 scripts/check-docs.py

if [ "$("$tools/bin/mdbook" --version 2>/dev/null || true)" != "mdbook v$version" ]; then
    # The lints of a run of test.sh are not those of mdBook.
    env -u RUSTC_WORKSPACE_WRAPPER -u CLIPPY_ARGS cargo install mdbook --version "$version" --locked --root "$tools"
fi

rm -rf "$book"
log=$("$tools/bin/mdbook" build 2>&1) || { echo "$log" >&2; exit 1; }
echo "$log"
if grep -qE '^ *(WARN|ERROR)' <<<"$log"; then
    echo "error: mdBook has warnings; see above" >&2
    exit 1
fi
# The search needs its index, and the page of a search its script.
compgen -G "$book/searchindex*.js" >/dev/null || { echo "error: $book has no search index" >&2; exit 1; }

python3 scripts/check-docs.py --book "$book"
