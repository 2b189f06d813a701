// Package modules reads the modules of this repository. It sets the versions by which they require
// each other. Go commands fetch them from a scratch clone.
package modules

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// Module is a folder with a go.mod.
type Module struct {
	// Dir is relative to the root of the repository, with slashes.
	Dir string
	// Path is the module path.
	Path string
	// Siblings are the folders of the required modules of this repository.
	Siblings []string
	// Required contains the version at which the module requires each sibling, by the folder of the
	// sibling.
	Required map[string]string
	// Contrib means that the module belongs to the group contrib: a comment above the module
	// directive of its go.mod says so. All other modules are stable.
	Contrib bool
}

// Released reports whether the module has version tags.
func (m Module) Released() bool { return Released(m.Dir) }

// Library reports whether importers depend on the API of the module. A program has none.
func (m Module) Library() bool { return m.Released() && !strings.HasPrefix(m.Dir, "cmd/") }

// OnlyReleased returns the modules that have version tags.
func OnlyReleased(all []Module) []Module {
	return slices.DeleteFunc(slices.Clone(all), func(m Module) bool { return !m.Released() })
}

// Tag is the name of the version tag of the module.
func (m Module) Tag(version string) string { return path.Join(m.Dir, version) }

// Load returns all modules below root, each after the modules that it requires. It skips folders
// named bin or testdata, and those that start with a dot.
func Load(root string) ([]Module, error) {
	found := map[string]Module{}
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && Skipped(name):
			return fs.SkipDir
		case entry.Name() != "go.mod":
			return nil
		}

		m, err := read(root, path.Dir(name))
		found[m.Dir] = m
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no module in %s", root)
	}

	return sorted(found)
}

func read(root, dir string) (Module, error) {
	file, err := parse(goMod(root, dir))
	if err != nil {
		return Module{}, err
	}

	m := Module{Dir: dir, Path: file.Module.Mod.Path, Required: map[string]string{}, Contrib: isContrib(file)}
	for _, required := range file.Require {
		if sibling, ok := Folder(required.Mod.Path); ok {
			m.Siblings = append(m.Siblings, sibling)
			m.Required[sibling] = required.Mod.Version
		}
	}

	return m, nil
}

// isContrib reports whether a comment above the module directive begins with the name of the group.
func isContrib(file *modfile.File) bool {
	return slices.ContainsFunc(file.Module.Syntax.Before, func(comment modfile.Comment) bool {
		return strings.HasPrefix(comment.Token, "// contrib:")
	})
}

func folder(root, dir string) string { return filepath.Join(root, filepath.FromSlash(dir)) }

func goMod(root, dir string) string { return filepath.Join(folder(root, dir), "go.mod") }

func parse(name string) (*modfile.File, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return modfile.Parse(name, text, nil)
}

var errCycle = errors.New("modules require each other in a cycle")

// sorted puts each module after its siblings.
func sorted(found map[string]Module) (order []Module, err error) {
	const visiting, visited = 1, 2
	state := map[string]int{}
	var visit func(dir string) error
	visit = func(dir string) error {
		switch m, ok := found[dir]; {
		case !ok:
			return fmt.Errorf("%s is required, but is not a module", dir)
		case state[dir] == visited:
			return nil
		case state[dir] == visiting:
			return fmt.Errorf("%w: %s", errCycle, dir)
		default:
			state[dir] = visiting
			for _, sibling := range m.Siblings {
				if err := visit(sibling); err != nil {
					return err
				}
			}

			state[dir] = visited
			order = append(order, m)
			return nil
		}
	}

	for _, dir := range sortedKeys(found) {
		if err := visit(dir); err != nil {
			return nil, err
		}
	}

	return order, nil
}
