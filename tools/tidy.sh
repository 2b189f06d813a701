#!/bin/sh
# Runs go mod tidy in each of the given modules until a whole round changes no file. A module can only be tidy after the
# siblings that it requires. Each module replaces the siblings that it requires by their folders, and no others.
set -eu

GO=${GO:-go}
export GOWORK=off
root=$("$GO" list -m)

state() {
    for m in "$@"; do cat "$m/go.mod"; [ ! -f "$m/go.sum" ] || cat "$m/go.sum"; done | cksum
}

# below prints a folder below another: below .. core is ../core, below .. . is "..".
below() { [ "$2" = . ] && echo "$1" || echo "$1/$2"; }

tidy() {
    m=$1 up=$(echo "$1" | sed 's|[^/.][^/]*|..|g') edits=
    shift
    for s in "$@"; do
        [ "$s" = "$m" ] || edits="$edits -replace=$(below "$root" "$s")=$(below "$up" "$s")"
    done
    (
        cd "$m"
        "$GO" mod edit $edits
        "$GO" mod tidy
        unused=
        for s in "$@"; do
            grep -q "^\(require \|	\)$(below "$root" "$s") v" go.mod || unused="$unused -dropreplace=$(below "$root" "$s")"
        done
        "$GO" mod edit $unused
    )
}

after=$(state "$@")
before=
while [ "$before" != "$after" ]; do
    before=$after
    for m in "$@"; do tidy "$m" "$@"; done
    after=$(state "$@")
done
