package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
	"github.com/runtime-watcher/runtime-watcher/tools/internal/modules"
)

// compare prints the changes of the API since the last release. Incompatible changes need a heading
// in CHANGELOG.md and the next major version of their group, or before v1 the next minor version.
func (r *release) compare(ctx context.Context) error {
	if r.last.Stable == "" {
		fmt.Fprintln(r.out, "      there is no release before")
		return nil
	}

	before, err := r.loadLast(ctx)
	if err != nil {
		return err
	}

	isStableBroken := false
	isContribBroken := false
	for _, m := range r.released {
		if _, err := os.Stat(filepath.Join(before, filepath.FromSlash(m.Dir), "go.mod")); err != nil {
			fmt.Fprintf(r.out, "      %s is new\n", m.Dir)
			continue
		}

		report, err := r.difference(ctx, before, m)
		if err != nil {
			return err
		}

		r.printReport(m, report)

		if strings.Contains(report, "Incompatible changes:") {
			isStableBroken = isStableBroken || !m.Contrib
			isContribBroken = isContribBroken || m.Contrib
		}
	}

	if isStableBroken {
		if err := r.allowIncompatible(r.versions.Stable, r.last.Stable, headingIncompatible); err != nil {
			return err
		}
	}

	if isContribBroken {
		return r.allowIncompatible(r.versions.Contrib, r.last.Contrib, headingContrib)
	}

	return nil
}

// loadLast checks out the last release into a folder next to the clone.
func (r *release) loadLast(ctx context.Context) (string, error) {
	dir := filepath.Join(r.scratch, "last")
	_, err := modules.Git(ctx, r.clone.Dir, "worktree", "add", "--quiet", "--detach", dir, "refs/tags/"+r.last.Stable)
	return dir, err
}

func (r *release) printReport(m modules.Module, report string) {
	for line := range strings.Lines(report) {
		fmt.Fprintf(r.out, "      %-26s %s\n", m.Dir, strings.TrimSpace(line))
	}
}

// difference compares one module with its last release.
func (r *release) difference(ctx context.Context, before string, m modules.Module) (string, error) {
	old := filepath.Join(r.scratch, strings.ReplaceAll(m.Dir, "/", "-")+".api")
	if _, err := r.api(ctx, before, m, "-m", "-w", old, m.Path); err != nil {
		return "", err
	}
	return r.api(ctx, r.clone.Dir, m, "-m", old, m.Path)
}

// api runs apidiff in a module of a checkout. The sibling modules come from the same checkout.
func (r *release) api(ctx context.Context, checkout string, m modules.Module, args ...string) (string, error) {
	workspace, err := r.workspace(checkout, m)
	if err != nil {
		return "", err
	}

	cmd := exec.CommandContext(ctx, r.apidiff, args...)
	cmd.Dir = filepath.Join(checkout, filepath.FromSlash(m.Dir))
	cmd.Env = append(os.Environ(), "GOWORK="+workspace)

	report, err := command.Output(cmd)
	if err != nil {
		return "", fmt.Errorf("%s: %w", m.Dir, err)
	}

	return report, nil
}

// workspace writes a workspace with one module of a checkout, and returns its path. With all
// modules in the workspace, apidiff would count the API of nested modules as part of the root
// module.
func (r *release) workspace(checkout string, m modules.Module) (string, error) {
	text, err := os.ReadFile(filepath.Join(checkout, "go.work"))
	if err != nil {
		return "", err
	}

	work, err := modfile.ParseWork("go.work", text, nil)
	if err != nil {
		return "", err
	}

	name := strings.ReplaceAll(m.Dir, "/", "-") + "-" + filepath.Base(checkout) + ".work"
	own := &modfile.WorkFile{Syntax: &modfile.FileSyntax{}}
	errs := []error{
		own.AddGoStmt(work.Go.Version),
		own.AddUse(filepath.Join(checkout, filepath.FromSlash(m.Dir)), ""),
	}

	for _, sibling := range r.all {
		if sibling.Dir != m.Dir {
			folder := filepath.Join(checkout, filepath.FromSlash(sibling.Dir))
			errs = append(errs, own.AddReplace(sibling.Path, "", folder, ""))
		}
	}

	path := filepath.Join(r.scratch, name)
	errs = append(errs, os.WriteFile(path, modfile.Format(own.Syntax), 0o600))
	return path, errors.Join(errs...)
}

// The headings in CHANGELOG.md that name incompatible changes of a group.
const (
	headingIncompatible = "### Incompatible"
	headingContrib      = "### Incompatible in contrib"
)

var errIncompatible = errors.New("the API has incompatible changes, see above")

// allowIncompatible fails unless the version of a group and the changelog announce the changes.
func (r *release) allowIncompatible(version, last, heading string) error {
	next := semver.Major
	if semver.Major(version) == "v0" {
		next = semver.MajorMinor
	}
	if next(version) == next(last) {
		return fmt.Errorf("%w: want a later version than %s.x", errIncompatible, next(last))
	}

	changes, err := r.changes()
	if err != nil {
		return err
	}
	if !slices.Contains(strings.Split(changes, "\n"), heading) {
		return fmt.Errorf("%w: want the heading %q in CHANGELOG.md", errIncompatible, heading)
	}

	return nil
}
