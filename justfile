# Shortcuts for `just`. They are all plain commands: nothing else in the project needs just.

# Lists the commands.
default:
    @just --list

# Starts a server on 127.0.0.1:8080 with its data in ./redrive-data.
dev *args:
    cargo run -p redrive -- dev {{args}}

# Format, lints and the quick tests: the inner loop.
quick:
    ./test.sh quick

# Everything that must pass before a change is merged; CI runs the same.
test:
    ./test.sh full

# The long suites, and checks that need unusual tools.
extended:
    ./test.sh extended

# A short benchmark beside the reference relay.
bench *args:
    bench/run --quick {{args}}
