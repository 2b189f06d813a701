#!/bin/sh
# Runs go mod tidy in every module given, each alone, until a whole round changes nothing: a module can only be tidy
# once the siblings it requires are.
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
