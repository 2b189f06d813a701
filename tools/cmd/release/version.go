package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/modules"
)

// checkVersion finds the last release. It fails unless the versions are new and later, and the
// working tree has no uncommitted changes.
func (r *release) checkVersion(ctx context.Context) error {
	if !isCanonical(r.versions.Stable) {
		return errUsage
	}
	if semver.Compare(semver.Major(r.versions.Stable), "v1") > 0 {
		return errors.New("from v2 on, module paths need the major version as suffix")
	}

	if r.versions.Contrib == "" && semver.Major(r.versions.Stable) == "v0" {
		r.versions.Contrib = r.versions.Stable
	}
	if !isCanonical(r.versions.Contrib) {
		return errUsage
	}
	if semver.Major(r.versions.Contrib) != "v0" {
		return fmt.Errorf("modules of the group contrib stay at v0, and cannot have %s", r.versions.Contrib)
	}

	changed, err := modules.Git(ctx, r.root, "status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("files are not committed:\n%s", changed)
	}

	return r.checkLast(ctx)
}

func isCanonical(version string) bool {
	return semver.IsValid(version) && semver.Canonical(version) == version
}

// checkLast finds the last version of each group, and fails unless the new ones are later.
func (r *release) checkLast(ctx context.Context) error {
	all, err := modules.Load(r.root)
	if err != nil {
		return err
	}

	for _, m := range modules.OnlyReleased(all) {
		last, err := r.lastVersion(ctx, m)
		if err != nil {
			return err
		}

		group := &r.last.Stable
		if m.Contrib {
			group = &r.last.Contrib
		}
		if semver.Compare(last, *group) > 0 {
			*group = last
		}
	}

	if semver.Compare(r.versions.Stable, r.last.Stable) <= 0 {
		return fmt.Errorf("%s is not later than the last release, %s", r.versions.Stable, r.last.Stable)
	}
	if semver.Compare(r.versions.Contrib, r.last.Contrib) <= 0 {
		return fmt.Errorf("%s is not later than the last release of the group contrib, %s: set CONTRIB",
			r.versions.Contrib, r.last.Contrib)
	}

	return nil
}

// lastVersion returns the last released version of a module, "" before its first release.
func (r *release) lastVersion(ctx context.Context, m modules.Module) (last string, err error) {
	tags, err := modules.Git(ctx, r.root, "tag", "--list", m.Tag("v*"))
	if err != nil {
		return "", err
	}

	for tag := range strings.FieldsSeq(tags) {
		version := path.Base(tag)
		if m.Tag(version) == tag && semver.IsValid(version) && semver.Compare(version, last) > 0 {
			last = version
		}
	}

	return last, nil
}

// checkChangelog demands a section of the version with text.
func (r *release) checkChangelog(context.Context) error {
	section, err := r.changes()
	if err != nil {
		return err
	}
	if section == "" {
		return fmt.Errorf(`want a section "## %s (YYYY-MM-DD)" with text`, r.versions.Stable)
	}
	return nil
}

// changes returns the section of the version in CHANGELOG.md, without its heading. "" means that
// there is none with a date.
func (r *release) changes() (string, error) {
	text, err := os.ReadFile(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return "", err
	}

	for section := range strings.SplitSeq("\n"+string(text), "\n## ") {
		heading, body, _ := strings.Cut(section, "\n")
		version, date, _ := strings.Cut(heading, " ")
		if _, err := time.Parse("(2006-01-02)", date); err == nil && version == r.versions.Stable {
			return strings.TrimSpace(body), nil
		}
	}

	return "", nil
}
