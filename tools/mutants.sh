#!/bin/sh
# Mutates the syntax tree of packages and runs their tests: mutants.sh <gremlins> <percent> <package>...
# Fails if less than <percent> of the mutants of a package are found.
#
# gremlins works in a copy of the module, in which the relative path of a sibling leads nowhere. A second go.mod outside
# of the module has absolute paths.
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
  (cd "$module" && RUNTIME_WATCHER_ROOT=$root GOWORK=off GOFLAGS="-modfile=$dir/go.mod" "$gremlins" unleash "$root/$package" --timeout-coefficient 20 \
    --threshold-efficacy "$found" --output-statuses lt) || failed=1
done
[ -z "$failed" ]
