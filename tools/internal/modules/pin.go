package modules

import (
	"context"
	"maps"
	"os"
	"slices"

	"golang.org/x/mod/modfile"
)

// Pin makes one commit in which all modules require each other at the versions of their groups. It
// tags the released modules. They lose the replace lines of their siblings, because `go install`
// refuses a module with such lines. The go command fetches the siblings from the tags made so far.
func (c *Clone) Pin(ctx context.Context, all []Module, versions Versions) error {
	required := map[string]string{}
	for _, m := range all {
		required[m.Dir] = versions.Of(m)
	}

	var tags []string
	for i, m := range all {
		if err := pin(c.Dir, m, required); err != nil {
			return err
		}
		if m.Released() {
			if _, err := c.Run(ctx, folder(c.Dir, m.Dir), "go", "mod", "tidy"); err != nil {
				return err
			}
			tags = append(tags, m.Tag(versions.Of(m)))
		}

		if err := c.Commit(ctx, "release: "+versions.Stable, i > 0, tags...); err != nil {
			return err
		}
	}

	return nil
}

func pin(root string, m Module, required map[string]string) error {
	file, err := parse(goMod(root, m.Dir))
	if err != nil {
		return err
	}

	for _, sibling := range m.Siblings {
		if err := file.AddRequire(Path(sibling), required[sibling]); err != nil {
			return err
		}
	}

	if err := dropReplaced(file, m); err != nil {
		return err
	}

	text, err := file.Format()
	if err != nil {
		return err
	}

	return os.WriteFile(goMod(root, m.Dir), text, 0o600)
}

func dropReplaced(file *modfile.File, m Module) error {
	for _, replace := range slices.Clone(file.Replace) {
		if _, own := Folder(replace.Old.Path); own && m.Released() {
			if err := file.DropReplace(replace.Old.Path, replace.Old.Version); err != nil {
				return err
			}
		}
	}

	file.Cleanup()
	return nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
