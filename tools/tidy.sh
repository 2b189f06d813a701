#!/bin/sh
# Runs go mod tidy in each of the given modules until a whole round changes no file. A module can only be tidy after the
# siblings that it requires.
set -eu

state() {
    for m in "$@"; do cat "$m/go.mod"; [ ! -f "$m/go.sum" ] || cat "$m/go.sum"; done | cksum
}

after=$(state "$@")
before=
while [ "$before" != "$after" ]; do
    before=$after
    for m in "$@"; do
        (cd "$m" && GOWORK=off "${GO:-go}" mod tidy)
    done
    after=$(state "$@")
done
