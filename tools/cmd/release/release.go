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
	version                string
	// last is the version of the last release, "" before the first.
	last string
	// modules are all modules of the clone, each after its siblings. released are those with tags.
	modules, released []modules.Module
	proxy             *modules.Proxy
	commands          *modules.Go
}

// clone is the scratch clone that gets the commit.
func (r *release) clone() string { return filepath.Join(r.scratch, "clone") }

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
		{"versions of modules", r.pin},
		{"commit and tags", r.commit},
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
	r.printNext(dry)
	return nil
}

func (r *release) printNext(dry bool) {
	if dry {
		fmt.Fprintf(r.out, "\nNothing is changed. Without -dry-run, the tags are in this repository.\n")
		return
	}
	fmt.Fprintf(r.out, "\nPublish, in this order:\n  git push <remote> %s\n", strings.Join(r.tags(), " "))
	fmt.Fprintf(r.out, "  git merge -s ours -m 'Merge release %s' %[1]s\n", r.version)
}

// tags returns the tags of all released modules.
func (r *release) tags() []string {
	var tags []string
	for _, m := range r.released {
		tags = append(tags, m.Tag(r.version))
	}
	return tags
}

// forget removes the unpublished version from the module cache.
func (r *release) forget(ctx context.Context) error {
	if r.commands == nil {
		return nil
	}
	return r.commands.Forget(ctx, r.released, r.version)
}

var errUsage = errors.New("want a version such as v0.1.0: make release VERSION=v0.1.0")
