package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/modules"
)

// release is one run of the command.
type release struct {
	out                    io.Writer
	root, scratch, apidiff string
	versions               modules.Versions
	// last contains the versions of the last release, "" before the first release.
	last modules.Versions
	// all are the modules of the clone, each after its siblings. released contains the modules with
	// tags.
	all, released []modules.Module
	clone         *modules.Clone
}

type step struct {
	name string
	run  func(context.Context) error
}

func (r *release) run(ctx context.Context, dry bool) error {
	steps := []step{
		{"version", r.checkVersion},
		{"changelog", r.checkChangelog},
		{"scratch clone", r.makeClone},
		{"API", r.compare},
		{"commit and tags", r.pin},
		{"modules, built alone", r.build},
		{"agent, installed", r.install},
	}
	if !dry {
		steps = append(steps, step{"tags, fetched from there", r.fetch})
	}

	for _, s := range steps {
		started := time.Now()
		if err := s.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}

		fmt.Fprintf(r.out, "ok    %-25s %s\n", s.name, time.Since(started).Round(100*time.Millisecond))
	}

	if dry {
		fmt.Fprintf(r.out, "\nNothing is changed. Without -dry-run, the tags are in this repository.\n")
		return nil
	}

	fmt.Fprintf(r.out, "\nPublish, in this order:\n  git push <remote> %s\n", strings.Join(r.tags(), " "))
	fmt.Fprintf(r.out, "  git merge -s ours -m 'Merge release %s' %[1]s\n", r.versions.Stable)
	fmt.Fprintf(r.out, "  make tidy VERSION=%s CONTRIB=%s\n", r.versions.Stable, r.versions.Contrib)

	return nil
}

// tags returns the tags of all released modules.
func (r *release) tags() []string {
	var tags []string
	for _, m := range r.released {
		tags = append(tags, m.Tag(r.versions.Of(m)))
	}
	return tags
}

// makeClone clones the current commit.
func (r *release) makeClone(ctx context.Context) (err error) {
	if r.clone, err = modules.NewClone(ctx, r.root, filepath.Join(r.scratch, "clone"), "HEAD"); err != nil {
		return err
	}

	r.all, err = modules.Load(r.clone.Dir)
	if err != nil {
		return err
	}

	r.released = modules.OnlyReleased(r.all)
	return modules.CheckGroups(r.all)
}

// pin makes the only commit of the release, outside of all branches, and all tags.
func (r *release) pin(ctx context.Context) error { return r.clone.Pin(ctx, r.all, r.versions) }

// build checks each released module separately, at its tag.
func (r *release) build(ctx context.Context) error {
	for _, m := range r.released {
		dir := filepath.Join(r.clone.Dir, filepath.FromSlash(m.Dir))
		if _, err := r.clone.Run(ctx, dir, "go", "vet", "./..."); err != nil {
			return fmt.Errorf("%s: %w", m.Dir, err)
		}
	}

	changed, err := modules.Git(ctx, r.clone.Dir, "status", "--porcelain")
	if err == nil && changed != "" {
		err = fmt.Errorf("the build changes files:\n%s", changed)
	}
	return err
}

// install is for users of the agent. It fails for a module with replace lines.
func (r *release) install(ctx context.Context) error {
	return r.clone.Install(ctx, filepath.Join(r.scratch, "bin"), modules.Path("cmd/agent")+"@"+r.versions.Stable)
}

// fetch takes the tags, and the commit with them, out of the scratch clone.
func (r *release) fetch(ctx context.Context) error {
	args := []string{"fetch", "--quiet", "--no-tags", r.clone.Dir}
	for _, tag := range r.tags() {
		args = append(args, "refs/tags/"+tag+":refs/tags/"+tag)
	}

	_, err := modules.Git(ctx, r.root, args...)
	return err
}

// forget removes the unpublished version from the module cache.
func (r *release) forget(ctx context.Context) error {
	if r.clone == nil {
		return nil
	}
	return r.clone.Forget(ctx, r.released, r.versions)
}

var errUsage = errors.New("want a version such as v0.1.0: make release VERSION=v0.1.0, and from v1 on CONTRIB=v0.1.0")
