package migration

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test"
)

const fixtures = "test/lab/today/"

// TestFixtures compares the objects of package today with the lines that they stand for. It needs -lifecycle-manager.
func TestFixtures(t *testing.T) {
	upstream, spare := map[string]string{}, map[string][]string{}
	for _, row := range rows(t) {
		if row[1] == "but" {
			spare[row[0]] = row[2:]
			continue
		}
		var first, last int
		if _, err := fmt.Sscanf(row[2], "%d-%d", &first, &last); err != nil || first < 1 || last < first {
			t.Fatalf("lines %q, want <first>-<last>", row[2])
		}
		all := strings.Split(string(show(t, row[1])), "\n")
		text := strings.Join(all[min(first-1, len(all)):min(last, len(all))], "\n")
		if sum := fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:12]; sum != row[3] {
			t.Errorf("%s:%s has changed, so compare it with %s, and note %s:\n%s", row[1], row[2], row[0], sum, text)
		}
		upstream[row[0]] += strings.ToLower(text)
	}
	comment, word := regexp.MustCompile(`(?m)(^|\s)#.*$`), regexp.MustCompile(`[A-Za-z0-9/][A-Za-z0-9._/*-]+`)
	for object, text := range upstream {
		ours := comment.ReplaceAllString(string(test.Read(t, fixtures+"objects/"+object)), "")
		other := slices.DeleteFunc(word.FindAllString(ours, -1), func(w string) bool { return strings.Contains(text, strings.ToLower(w)) })
		slices.Sort(other)
		if other = slices.Compact(other); !slices.Equal(other, spare[object]) {
			t.Errorf("%s has the words %q beyond its lines of lifecycle-manager, want %q", object, other, spare[object])
		}
	}
}

// TestFixturesAreListed wants each file of objects in the list.
func TestFixturesAreListed(t *testing.T) {
	listed := map[string]bool{"rights.yaml": true}
	for _, row := range rows(t) {
		listed[row[0]] = true
	}
	files, err := filepath.Glob(filepath.Join(test.Root(), fixtures, "objects", "*"))
	if err != nil || len(files) < len(listed) {
		t.Fatalf("%d files, want the %d of the list: %v", len(files), len(listed), err)
	}
	for _, file := range files {
		if !listed[filepath.Base(file)] {
			t.Errorf("%slines.txt does not say what %s stands for", fixtures, filepath.Base(file))
		}
	}
}

// rows are those of the list: an object, and a file with lines and checksum, or "but" and words.
func rows(t *testing.T) (rows [][]string) {
	t.Helper()
	for line := range strings.Lines(string(test.Read(t, fixtures+"lines.txt"))) {
		if row := strings.Fields(line); len(row) > 0 && row[0] != "#" {
			if len(row) != 4 && row[1] != "but" {
				t.Fatalf("%slines.txt: want an object, a file, lines and a checksum, have %q", fixtures, line)
			}
			rows = append(rows, row)
		}
	}
	return rows
}
