#!/usr/bin/env bash
# Checks what a review needs no judgement for: make verify. The arguments are the folders of all modules. With
# ONLY='tidy alone', only these checks run. All checks run even if one fails, and each failure names its repair. The
# checks tidy and generated write what is missing, so that git diff shows it.
set -uo pipefail

GO=${GO:-go}
modules=("$@")
failed=()
first=${FIRST_LINES:-60}

# check <name> <repair> <command>: the output of the command is printed if it fails.
check() {
    local name=$1 repair=$2 started=$SECONDS output status=0
    shift 2
    [[ -z "${ONLY:-}" || " $ONLY " == *" $name "* ]] || return 0
    output=$("$@" 2>&1) || status=$?
    if [[ $status -eq 0 ]]; then
        printf 'ok    %-10s %d s\n' "$name" $((SECONDS - started))
        return
    fi
    failed+=("$name")
    printf 'FAIL  %-10s %d s\n' "$name" $((SECONDS - started))
    sed "${first}q; s/^/      /" <<<"$output"
    printf '      to repair: %s\n' "$repair"
}

# each runs a command in each module without the workspace, also after a failure.
each() {
    local m status=0
    for m in "${modules[@]}"; do
        (cd "$m" && GOWORK=off "$@") || { echo "$m: $*"; status=1; }
    done
    return $status
}

# unchanged runs a command and names the files that it changes.
unchanged() {
    local before after
    before=$(state)
    "$@" || return
    after=$(state)
    [[ "$before" == "$after" ]] || { echo 'changed:'; diff <(echo "$before") <(echo "$after") | awk '/^>/ { print $4 }'; return 1; }
}

state() {
    git ls-files -z --cached --others --exclude-standard | xargs -0 cksum 2>/dev/null | sort -k3
}

# go.work lists the modules and nothing else. All have one minor version of Go, and are called after their folders. A
# released module requires released siblings only.
workspace() {
    local m root status=0
    root=$(GOWORK=off "$GO" list -m)
    diff <("$GO" work edit -json | sed -n 's|.*"DiskPath": "\(\./\)\{0,1\}\(.*\)".*|\2|p' | sort) <(printf '%s\n' "${modules[@]}" | sort) ||
        { echo 'go.work (<) and the folders with a go.mod (>) differ'; status=1; }
    for m in "${modules[@]}"; do
        grep -q "^$(grep -o '^go [0-9]*[.][0-9]*' go.work)[.]" "$m/go.mod" || { echo "$m/go.mod has another Go version than go.work"; status=1; }
        [[ "$(cd "$m" && GOWORK=off "$GO" list -m)" == "$(sed 's|/\.$||' <<<"$root/$m")" ]] ||
            { echo "$m/go.mod: the module is not called after its folder"; status=1; }
        case "$m" in examples | test | tools | test/*) continue ;; esac
        ! grep -E "^(require |	)$root/(examples|test|tools)( |/)" "$m/go.mod" ||
            { echo "$m requires a module that is never released"; status=1; }
    done
    return $status
}

vet() {
    [[ -z "$("$GO" list ./... 2>&1)" ]] || "$GO" vet ./...
}

generate() {
    each "$GO" generate ./...
}

clean() {
    local status
    status=$(git status --porcelain)
    [[ -z "$status" ]] || { echo "$status"; git diff HEAD; return 1; }
}

check workspace 'go work use <folder>, or edit the go.mod' workspace
check exported 'unexport new names, or agree to the number: make count ARGS=-update' "$GO" run ./tools/cmd/count -check "${modules[@]}"
check tidy 'make tidy, and commit the changed files' unchanged tools/tidy.sh "${modules[@]}"
check generated 'make generate, and commit the changed files' unchanged generate
check licenses 'allow the license in tools/image/licenses.go, or drop the module' "$GO" run ./tools/image -licenses
check memory 'allocate less, or agree to it: make bench-compare ARGS=-update' "$GO" run ./tools/cmd/bench -memory
check alone 'GOWORK=off go vet ./... in the module named above' each vet
check consumer 'make consumer' "$GO" run ./tools/cmd/consumer
[[ "${CI:-}" != true ]] || check clean 'commit, or ignore, the files listed above' clean

if [[ ${#failed[@]} -gt 0 ]]; then
    echo "verify: failed: ${failed[*]}" >&2
    exit 1
fi
