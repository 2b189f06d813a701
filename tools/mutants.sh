#!/bin/sh
# Mutates the syntax tree of packages and runs their tests: mutants.sh <gremlins> <percent> <package>...
# Fails if less than <percent> of the mutants of a package are found.
#
# gremlins works in a copy of the module, in which the relative path of a sibling leads nowhere. A second go.mod outside
# of the module has absolute paths.
#
# A mutant may take six times as long as the tests without one. That time is measured, so the tests must run: the cache
# of go test would answer at once, and each mutant would exceed its time.
set -eu
gremlins=$1 found=$2
shift 2
root=$(pwd) dir=$(mktemp -d) failed=
trap 'rm -rf "$dir"' EXIT
for package; do
  module=$package
  until [ -e "$module/go.mod" ]; do module=$(dirname "$module"); done
  cp "$module/go.mod" "$module/go.sum" "$dir/"
  go mod edit -replace "github.com/runtime-watcher/runtime-watcher=$root" "$dir/go.mod"
  (cd "$module" && RUNTIME_WATCHER_ROOT=$root GOWORK=off GOFLAGS="-modfile=$dir/go.mod -count=1 -vet=off -ldflags=-w" \
    "$gremlins" unleash "$root/$package" --timeout-coefficient 6 \
    --threshold-efficacy "$found" --output-statuses lt) || failed=1
done
[ -z "$failed" ]
