#!/bin/sh
# Runs every fuzz target of the given modules, one after the other, FUZZTIME each. All of them run even if one fails. A
# failing input is written to testdata/fuzz/ of its package. Commit it there with the fix, as a test.
set -eu

GO=${GO:-go}
FUZZTIME=${FUZZTIME:-30s}
packages=$(
    for m in "$@"; do
        # A module without fuzz targets is no failure.
        find "./$m" -name '*_test.go' -exec grep -l '^func Fuzz' {} + || true
    done | while read -r file; do dirname "$file"; done | sort -u
)
if [ -z "$packages" ]; then
    echo "no fuzz targets found in: $*"
    exit 0
fi

failed=
for package in $packages; do
    # Listing compiles the package, so that a package that does not build fails here.
    targets=$("$GO" test -list '^Fuzz' "$package")
    for target in $(printf '%s\n' "$targets" | grep '^Fuzz' || true); do
        echo "== $package $target ($FUZZTIME)"
        "$GO" test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" "$package" || failed="$failed $package:$target"
    done
done
if [ -n "$failed" ]; then
    echo "failed:$failed" >&2
    exit 1
fi
