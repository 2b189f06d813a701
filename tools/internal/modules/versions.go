package modules

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/mod/module"
)

// Versions are the versions of one release: one for each group of modules.
type Versions struct{ Stable, Contrib string }

// Of returns the version of a module.
func (v Versions) Of(m Module) string {
	if m.Contrib {
		return v.Contrib
	}
	return v.Stable
}

// CheckGroups fails if a stable library requires a module of the group contrib. The promise of the
// library would then depend on a module without a promise. A program may require both.
func CheckGroups(all []Module) error {
	isContrib := map[string]bool{}
	for _, m := range all {
		isContrib[m.Dir] = m.Contrib
	}

	var errs []error
	for _, m := range all {
		if m.Contrib || !m.Library() {
			continue
		}

		for _, sibling := range m.Siblings {
			if isContrib[sibling] {
				errs = append(errs, fmt.Errorf("%s is stable and requires %s, which is contrib", m.Dir, sibling))
			}
		}
	}

	return errors.Join(errs...)
}

// Revision returns the git revision of a version of the module in a folder: the commit of a
// pseudo-version, or the tag.
func Revision(folder, version string) string {
	if module.IsPseudoVersion(version) {
		return version[strings.LastIndex(version, "-")+1:]
	}
	return path.Join(folder, version)
}
