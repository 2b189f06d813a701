#!/bin/sh
# Runs go mod tidy in each of the given modules until a whole round changes no file. A module can only be tidy after the
# siblings that it requires. Each module replaces the siblings that it requires by their folders, and no others. It
# requires them at VERSION, or at the version that the first module with one states. That is the last release, before the
# first one a commit of main: importers of a commit ask for it, as they do not see the replace lines.
set -eu

GO=${GO:-go}
export GOWORK=off
root=$("$GO" list -m)
version=${VERSION:-$(for m in "$@"; do sed -n "s|^.*[[:blank:]]$root\(/[^ ]*\)\{0,1\} \(v[^ ]*\).*|\2|p" "$m/go.mod"; done | head -n 1)}

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
        edits=
        for s in "$@"; do
            path=$(below "$root" "$s")
            if grep -q "^\(require \|	\)$path v" go.mod; then
                edits="$edits${version:+ -require=$path@$version}"
            else
                edits="$edits -dropreplace=$path"
            fi
        done
        [ -z "$edits" ] || "$GO" mod edit $edits
    )
}

after=$(state "$@")
before=
while [ "$before" != "$after" ]; do
    before=$after
    for m in "$@"; do tidy "$m" "$@"; done
    after=$(state "$@")
done
