package mutants

import (
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/test"
)

// A mutant with a name that its package lacks does not compile. Only make simulate-mutants would
// show that, for example after a method was renamed.
func TestMutantsUseNamesOfTheirPackage(t *testing.T) {
	t.Parallel()

	for file, mutants := range table {
		known := namesOfPackage(t, filepath.Dir(file))
		for _, m := range mutants {
			for _, name := range identifiers(m.new) {
				if !known[name] && types.Universe.Lookup(name) == nil {
					t.Errorf("%s: no file beside %s names %s: bring the table up to date", m.name, file, name)
				}
			}
		}
	}
}

// namesOfPackage returns the identifiers in the files of a folder, without tests.
func namesOfPackage(t *testing.T, folder string) map[string]bool {
	t.Helper()

	files, err := filepath.Glob(filepath.Join(test.Root(), folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}

	known := make(map[string]bool)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, name := range identifiers(string(test.Read(t, filepath.Join(folder, filepath.Base(file))))) {
			known[name] = true
		}
	}
	return known
}

func identifiers(source string) (names []string) {
	for _, l := range lexemes([]byte(source)) {
		if l.token == token.IDENT {
			names = append(names, l.literal)
		}
	}
	return names
}
