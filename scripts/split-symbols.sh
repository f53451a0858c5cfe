#!/usr/bin/env bash
# Usage: scripts/split-symbols.sh BINARY FOLDER
# Copies a release binary into FOLDER without its symbols, and its symbols beside it: NAME.debug on Linux, where the binary
# names that file and debuggers find it, NAME.dSYM on macOS. BINARY itself is not changed.
set -euo pipefail

if [ $# -ne 2 ] || [ ! -f "$1" ]; then
    echo "usage: $0 BINARY FOLDER" >&2
    exit 2
fi
name=$(basename "$1")
folder=$2
mkdir -p "$folder"

case $(uname -s) in
Linux)
    # A cross build needs the tools of its target, such as OBJCOPY=aarch64-linux-gnu-objcopy.
    objcopy=${OBJCOPY:-objcopy}
    sections=$("${READELF:-readelf}" --sections --wide "$1")
    if ! grep -qE '\.z?debug_line' <<<"$sections"; then
        echo "error: $1 has no debug info; build it with --profile dist" >&2
        exit 1
    fi
    "$objcopy" --only-keep-debug --compress-debug-sections "$1" "$folder/$name.debug"
    chmod 644 "$folder/$name.debug"
    "$objcopy" --strip-all --remove-section=.comment "$1" "$folder/$name"
    # The link holds the file's name and checksum, so it is written last, from within the folder.
    (cd "$folder" && "$objcopy" --add-gnu-debuglink="$name.debug" "$name")
    ;;
Darwin)
    rm -rf "$folder/$name.dSYM"
    dsymutil "$1" -o "$folder/$name.dSYM"
    cp "$1" "$folder/$name"
    strip -x "$folder/$name"
    # Stripping breaks the linker's signature, and Apple silicon refuses to run what is not signed.
    codesign --force --sign - "$folder/$name"
    ;;
*)
    echo "error: symbols cannot be split on $(uname -s)" >&2
    exit 1
    ;;
esac

du -sh "$folder/$name" "$folder/$name".d*
