package migration

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/runtime-watcher/runtime-watcher/test"
)

const fixtures = "test/lab/today/"

var (
	word        = regexp.MustCompile(`[A-Za-z0-9/][A-Za-z0-9._/*-]+`)
	placeholder = regexp.MustCompile(`%\[\d\]s`)
	kustomized  = regexp.MustCompile(`^klm-`)
)

// TestFixtures compares the objects of package today with the lines that they stand for. It needs -lifecycle-manager.
// If the first lines are objects, each field must have the same value there. Otherwise the lines must have each word.
func TestFixtures(t *testing.T) {
	upstream, spare, code := map[string]string{}, map[string][]string{}, map[string]bool{}
	for _, row := range rows(t) {
		if row[1] == "but" {
			spare[row[0]] = append(spare[row[0]], row[2:]...)
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
		if upstream[row[0]] == "" {
			code[row[0]] = path.Ext(row[1]) != ".yaml" || strings.Contains(row[1], "/crd/")
		}
		upstream[row[0]] += "\n---\n" + text
	}
	for object, text := range upstream {
		ours, compare := string(test.Read(t, fixtures+"objects/"+object)), words
		if !code[object] {
			compare = fields
		}
		slices.Sort(spare[object])
		if other := compare(ours, text); !slices.Equal(other, spare[object]) {
			t.Errorf("%s has beyond its lines of lifecycle-manager\n%s\nwant\n%s",
				object, strings.Join(other, "\n"), strings.Join(spare[object], "\n"))
		}
	}
}

// words returns those that the lines do not have.
func words(ours, lines string) []string {
	ours, lines = regexp.MustCompile(`(?m)(^|\s)#.*$`).ReplaceAllString(ours, ""), strings.ToLower(lines)
	other := slices.DeleteFunc(word.FindAllString(ours, -1), func(w string) bool {
		return strings.Contains(lines, strings.ToLower(w))
	})
	slices.Sort(other)
	return slices.Compact(other)
}

// fields returns the fields that the objects in the lines do not have with that value. Spaces are underscores.
func fields(ours, lines string) []string {
	has, other := leaves(lines), leaves(ours)
	maps.DeleteFunc(other, func(leaf string, _ bool) bool { return has[leaf] })
	return slices.Sorted(maps.Keys(other))
}

// leaves are <kind>/<name>.<path>=<value>. A kustomization sets the prefix of names, and namespaces.
func leaves(text string) map[string]bool {
	all := map[string]bool{}
	for document := range strings.SplitSeq(text, "\n---\n") {
		var object map[string]any
		if yaml.Unmarshal(placeholder.ReplaceAll([]byte(document), []byte("ours")), &object) != nil || object == nil {
			all["malformed:"+document] = true
			continue
		}
		meta, _ := object["metadata"].(map[string]any)
		name := fmt.Sprint(meta["name"])
		delete(meta, "namespace")
		maps.Copy(all, leavesOf(fmt.Sprint(object["kind"])+"/"+kustomized.ReplaceAllString(name, ""), object))
	}
	return all
}

func leavesOf(at string, value any) map[string]bool {
	all := map[string]bool{}
	switch v := value.(type) {
	case map[string]any:
		for key, part := range v {
			maps.Copy(all, leavesOf(at+"."+key, part))
		}
	case []any:
		for _, part := range v {
			named, _ := part.(map[string]any)
			maps.Copy(all, leavesOf(fmt.Sprintf("%s[%v]", at, cmp.Or(named["name"], any(""))), part))
		}
	default:
		all[strings.ReplaceAll(fmt.Sprintf("%s=%v", at, kustomized.ReplaceAllString(fmt.Sprint(v), "")), " ", "_")] = true
	}
	return all
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
