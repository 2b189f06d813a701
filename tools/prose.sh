#!/usr/bin/env bash
# Checks Markdown, comments and messages with vale, and that a comment ends by column 100: vale parses comments as
# Markdown and has no rule for columns. A warning (a pronoun begins a sentence) is shown and does not fail. Arguments are
# paths, the whole repository without any. VALE names the program.
set -euo pipefail

files=()
while IFS= read -r -d '' file; do
    [[ -f "$file" ]] || continue
    [[ "$file" == *.go ]] && grep -q '^// Code generated .* DO NOT EDIT\.$' "$file" && continue
    files+=("$file")
done < <(git ls-files -z --cached --others --exclude-standard -- "${@:-.}" |
    grep -zE '\.(md|go)$' | grep -zvE '(^|/)testdata/|_test\.go$|^test/.*\.go$')
[[ ${#files[@]} -gt 0 ]] || exit 0

status=0
"${VALE:-vale}" --no-global --config=.vale.ini --minAlertLevel=warning --output=line -- "${files[@]}" || status=1
# A tab has four columns. A URL, a directive and a marker cannot be broken into lines.
printf '%s\0' "${files[@]}" | { grep -z '\.go$' || :; } | xargs -0 -r awk '
    /^[ \t]*\/\/ .*[^ ][ ][^ ]/ && !/\/\/ \+/ {
        line = $0
        gsub(/\t/, "    ", line)
        if (length(line) > 100) { printf "%s:%d: a comment beyond column 100\n", FILENAME, FNR; wide = 1 }
    }
    END { exit wide }' || status=1
exit $status
