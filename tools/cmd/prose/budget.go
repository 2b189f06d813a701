package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

// budget maps a path to the number of alerts that are allowed in it and below. A file belongs to
// the longest path that contains it. Without such a path its budget is 0.
type budget map[string]int

const budgetHeading = `# The number of alerts of the prose linter that each path may have. A path that is not listed may
# have none. Lower the numbers with: make prose ARGS=-update. To raise one is a decision: edit it.
`

func readBudget(file string) (budget, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	read := budget{}
	for line := range strings.Lines(string(content)) {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}
		var allowed int
		var name string
		if _, err := fmt.Sscanf(line, "%d %s", &allowed, &name); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", file, strings.TrimSpace(line), err)
		}
		read[name] = allowed
	}
	return read, nil
}

func (b budget) write(file string) error {
	var content bytes.Buffer
	content.WriteString(budgetHeading)
	for _, name := range slices.Sorted(maps.Keys(b)) {
		fmt.Fprintf(&content, "%5d %s\n", b[name], name)
	}
	return os.WriteFile(file, content.Bytes(), 0o644)
}

// pathOf returns the path to which an alert in the file counts.
func (b budget) pathOf(file string) string {
	longest := ""
	for name := range b {
		if contains(name, file) && len(name) > len(longest) {
			longest = name
		}
	}
	switch {
	case longest != "":
		return longest
	case strings.HasSuffix(file, ".go"):
		return path.Dir(file)
	}
	return file
}

func (b budget) count(alerts []alert) map[string]int {
	counts := map[string]int{}
	for _, a := range alerts {
		counts[b.pathOf(a.file)]++
	}
	return counts
}

// lowered returns a budget without slack. No number is higher than before. Paths without alerts are
// not listed.
func (b budget) lowered(counts map[string]int) budget {
	lower := budget{}
	for name, allowed := range b {
		if n := min(allowed, counts[name]); n > 0 {
			lower[name] = n
		}
	}
	return lower
}

// report prints a line per path, and the alerts in paths above their budget, or all alerts.
func report(out io.Writer, b budget, counts map[string]int, alerts []alert, all bool) error {
	text := bufio.NewWriter(out)
	for _, a := range alerts {
		if name := b.pathOf(a.file); all || counts[name] > b[name] {
			fmt.Fprintln(text, a)
		}
	}
	var above []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(text, "%5d alerts of %5d allowed in %s\n", counts[name], b[name], name)
		if counts[name] > b[name] {
			above = append(above, name)
		}
	}
	fmt.Fprintf(text, "%5d alerts in all\n", len(alerts))
	if err := text.Flush(); err != nil {
		return err
	}
	if len(above) > 0 {
		return fmt.Errorf("more alerts than %s allows in %s", budgetFile, strings.Join(above, ", "))
	}
	return nil
}
