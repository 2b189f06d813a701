package main

import (
	"context"
	"os/exec"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
)

// git runs a git command in a folder and returns its standard output, trimmed.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	text, err := command.Output(cmd)
	return strings.TrimSpace(text), err
}

// makeClone clones the current commit. The clone has no remote.
func (r *release) makeClone(ctx context.Context) error {
	if _, err := git(ctx, r.scratch, "clone", "--quiet", "--no-checkout", r.root, "clone"); err != nil {
		return err
	}
	head, err := git(ctx, r.root, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	for _, args := range [][]string{{"remote", "remove", "origin"}, {"checkout", "--quiet", "--detach", head}} {
		if _, err := git(ctx, r.clone(), args...); err != nil {
			return err
		}
	}
	return r.load()
}

// commit makes the only commit of the release, beside all branches, and all tags.
func (r *release) commit(ctx context.Context) error {
	if _, err := git(ctx, r.clone(), "commit", "--quiet", "--all", "--message", "release: "+r.version); err != nil {
		return err
	}
	for _, tag := range r.tags() {
		if _, err := git(ctx, r.clone(), "tag", "--annotate", "--message", tag, tag); err != nil {
			return err
		}
	}
	return nil
}

// fetch takes the tags, and the commit with them, out of the scratch clone.
func (r *release) fetch(ctx context.Context) error {
	args := []string{"fetch", "--quiet", "--no-tags", r.clone()}
	for _, tag := range r.tags() {
		args = append(args, "refs/tags/"+tag+":refs/tags/"+tag)
	}
	_, err := git(ctx, r.root, args...)
	return err
}
