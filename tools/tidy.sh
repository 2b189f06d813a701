#!/bin/sh
# Runs go mod tidy in each of the given modules until a whole round changes no file. A module can only be tidy after the
# siblings that it requires. Each module replaces the siblings that it requires by their folders, and no others. It
# requires stable siblings at VERSION and those of the group contrib at CONTRIB, or at the version that the first module
# with one states. That is the last release or a commit of main: importers of a commit ask for it, as they do not see the
# replace lines. VERSION=HEAD is the current commit, for both groups. Without CONTRIB, a VERSION of v0 is for both.
set -eu

GO=${GO:-go}
export GOWORK=off
root=$("$GO" list -m)

# below prints a folder below another: below .. core is ../core, below .. . is "..".
below() { [ "$2" = . ] && echo "$1" || echo "$1/$2"; }

# Each go.mod of the group contrib says so above its module directive.
contrib=$(grep -l '^// contrib:' $(printf '%s/go.mod ' "$@") | sed 's|/go.mod$||') || contrib=
is_contrib() { printf '%s\n' "$contrib" | grep -Fqx "$1"; }

# head_after prints the pseudo-version of the current commit after the last tag that matches.
# https://go.dev/ref/mod#pseudo-versions
head_after() {
    last=$(git describe --tags --abbrev=0 --match "$1" --exclude '*-*' 2>/dev/null | sed 's|.*/||' |
        awk -F . '{ print $1 "." $2 "." $3 + 1 "-0." }')
    echo "${last:-v0.0.0-}$(TZ=UTC0 git log -1 --date=format-local:%Y%m%d%H%M%S --format=%cd)-$(git rev-parse HEAD | cut -c 1-12)"
}

# stated prints the version at which the first of all modules requires one of the folders.
stated() {
    for s in $1; do
        for m in $2; do sed -n "s|^.*[[:blank:]]$(below "$root" "$s") \(v[^ ]*\).*|\1|p" "$m/go.mod"; done
    done | head -n 1
}

stable=
for m in "$@"; do is_contrib "$m" || stable="$stable $m"; done
if [ "${VERSION:-}" = HEAD ]; then
    VERSION=$(head_after 'v[0-9]*')
    CONTRIB=$(head_after "$(echo $contrib | cut -d ' ' -f 1)/v[0-9]*")
fi
case "${VERSION:-}" in v0*) CONTRIB=${CONTRIB:-$VERSION} ;; esac
of_stable=${VERSION:-$(stated "$stable" "$*")}
of_contrib=${CONTRIB:-$(stated "$contrib" "$*")}
version_of() { if is_contrib "$1"; then echo "${of_contrib:-$of_stable}"; else echo "$of_stable"; fi; }

state() {
    for m in "$@"; do cat "$m/go.mod"; [ ! -f "$m/go.sum" ] || cat "$m/go.sum"; done | cksum
}

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
                version=$(version_of "$s")
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
