package main

func didYouMean(name string, names []string) string {
	const shortName = 6

	most := 2
	if len(name) < shortName {
		most = 1
	}

	for edits := range most + 1 {
		for _, candidate := range names {
			if isNear(name, candidate, edits) {
				return ", did you mean " + candidate + "?"
			}
		}
	}
	return ""
}

// isNear reports whether at most that many insertions, deletions and replacements of bytes turn a
// into b.
func isNear(a, b string, edits int) bool {
	for a != "" && b != "" && a[0] == b[0] {
		a = a[1:]
		b = b[1:]
	}
	if edits == 0 || a == "" || b == "" {
		return len(a)+len(b) <= edits
	}

	return isNear(a[1:], b[1:], edits-1) || isNear(a[1:], b, edits-1) || isNear(a, b[1:], edits-1)
}
