#!/bin/sh
# Runs every fuzz target of the modules given, one after the other, FUZZTIME each. All of them run, whatever fails; what
# a fuzzer found lies under testdata/fuzz/ of its package: keep it there as a test, and commit it with the fix.
set -eu

GO=${GO:-go}
FUZZTIME=${FUZZTIME:-30s}
packages=$(
    for m in "$@"; do
        # grep finds nothing in most modules, which is no failure.
        find "./$m" -name '*_test.go' -exec grep -l '^func Fuzz' {} + || true
    done | while read -r file; do dirname "$file"; done | sort -u
)
if [ -z "$packages" ]; then
    echo "no fuzz targets found in: $*"
    exit 0
fi

failed=
for package in $packages; do
    # Compiled first, so that a package that does not build stops here instead of looking as if it had no targets.
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
