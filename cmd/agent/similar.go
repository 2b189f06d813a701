package main

// didYouMean asks for the first of names that is nearest to name. It is empty when none is near.
func didYouMean(name string, names []string) string {
	const shortName = 6
	nearest, limit := "", 2
	if len(name) < shortName {
		limit = 1
	}
	for _, candidate := range names {
		if d := distance(name, candidate); d <= limit {
			nearest, limit = candidate, d-1
		}
	}
	if nearest == "" {
		return ""
	}
	return ", did you mean " + nearest + "?"
}

// distance is how many bytes must be inserted, deleted or replaced to make b of a (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}

	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1

		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}

			diagonal = row[j+1]
			row[j+1] = min(replaced, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
