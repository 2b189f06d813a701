#!/bin/sh
# Runs go mod tidy in each of the given modules until a whole round changes no file. A module can only be tidy after the
# siblings that it requires. Each module replaces the siblings that it requires by their folders, and no others. It
# requires them at VERSION, or at the version that the first module with one states. That is the last release or a commit
# of main: importers of a commit ask for it, as they do not see the replace lines. VERSION=HEAD is the current commit.
set -eu

GO=${GO:-go}
export GOWORK=off
root=$("$GO" list -m)
# A pseudo-version follows the last release: https://go.dev/ref/mod#pseudo-versions
if [ "${VERSION:-}" = HEAD ]; then
    after=$(git describe --tags --abbrev=0 --match 'v[0-9]*' --exclude '*-*' 2>/dev/null | awk -F . '{ print $1 "." $2 "." $3 + 1 "-0." }')
    VERSION=${after:-v0.0.0-}$(TZ=UTC0 git log -1 --date=format-local:%Y%m%d%H%M%S --format=%cd)-$(git rev-parse HEAD | cut -c 1-12)
fi
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
            if grep -Eq "^(require |	)$path v" go.mod; then
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
