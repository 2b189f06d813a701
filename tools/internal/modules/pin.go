package modules

import (
	"maps"
	"os"
	"slices"

	"golang.org/x/mod/modfile"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/measure"
)

// Pin sets the version by which a module requires its siblings. A released module also loses the
// replace lines of its siblings: `go install` refuses a module with such lines.
func Pin(root string, m Module, version string) error {
	file, err := parse(goMod(root, m.Dir))
	if err != nil {
		return err
	}
	if err := pin(file, m, version); err != nil {
		return err
	}
	text, err := file.Format()
	if err != nil {
		return err
	}
	return os.WriteFile(goMod(root, m.Dir), text, 0o600)
}

func pin(file *modfile.File, m Module, version string) error {
	for _, sibling := range m.Siblings {
		if err := file.AddRequire(measure.Path(sibling), version); err != nil {
			return err
		}
	}
	for _, replace := range slices.Clone(file.Replace) {
		if _, own := measure.Folder(replace.Old.Path); own && m.Released() {
			if err := file.DropReplace(replace.Old.Path, replace.Old.Version); err != nil {
				return err
			}
		}
	}
	file.Cleanup()
	return nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
