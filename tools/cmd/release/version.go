package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/modules"
)

// checkVersion finds the last release. It fails unless the version is new and later, and the
// working tree is as committed.
func (r *release) checkVersion(ctx context.Context) error {
	if !semver.IsValid(r.version) || semver.Canonical(r.version) != r.version {
		return errUsage
	}
	if semver.Compare(semver.Major(r.version), "v1") > 0 {
		return errors.New("from v2 on, module paths need the major version as suffix")
	}
	changed, err := modules.Git(ctx, r.root, "status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("files are not committed:\n%s", changed)
	}
	tags, err := modules.Git(ctx, r.root, "tag", "--list", "v*")
	if err != nil {
		return err
	}
	for tag := range strings.FieldsSeq(tags) {
		if semver.IsValid(tag) && semver.Compare(tag, r.last) > 0 {
			r.last = tag
		}
	}
	if semver.Compare(r.version, r.last) <= 0 {
		return fmt.Errorf("%s is not later than the last release, %s", r.version, r.last)
	}
	return nil
}

// checkChangelog demands a section of the version with text.
func (r *release) checkChangelog(context.Context) error {
	section, err := r.changes()
	if err != nil {
		return err
	}
	if section == "" {
		return fmt.Errorf(`want a section "## %s (YYYY-MM-DD)" with text`, r.version)
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
		if _, err := time.Parse("(2006-01-02)", date); err == nil && version == r.version {
			return strings.TrimSpace(body), nil
		}
	}
	return "", nil
}
