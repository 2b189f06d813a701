package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// snapshot maps every file that git tracks or would add to a hash of its content.
type snapshot map[string][sha256.Size]byte

func (r *repository) snapshot(ctx context.Context) (snapshot, error) {
	files, err := r.files(ctx)
	if err != nil {
		return nil, err
	}
	taken := make(snapshot, len(files))
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(r.root, filepath.FromSlash(file)))
		// Deleted since it was listed.
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		taken[file] = sha256.Sum256(content)
	}
	return taken, nil
}

// changed returns the files that differ between two snapshots, sorted.
func changed(before, after snapshot) []string {
	names := map[string]bool{}
	for name, sum := range before {
		if other, ok := after[name]; !ok || other != sum {
			names[name] = true
		}
	}
	for name := range after {
		if _, ok := before[name]; !ok {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// checkGenerated runs go generate in every module and fails if that changes a file.
func checkGenerated(ctx context.Context, repo *repository) error {
	before, err := repo.snapshot(ctx)
	if err != nil {
		return err
	}
	err = repo.eachModule(func(m module) error {
		_, err := repo.output(ctx, m.Dir, "go", "generate", "./...")
		return err
	})
	if err != nil {
		return err
	}
	return repo.unchangedSince(ctx, before)
}

// checkClean fails if a check changed the tree, or, in CI, if the tree is not committed.
func checkClean(ctx context.Context, repo *repository) error {
	if !repo.mustBeClean {
		return repo.unchangedSince(ctx, repo.before)
	}
	status, err := repo.output(ctx, ".", "git", "status", "--porcelain")
	if err != nil || status == "" {
		return err
	}
	diff, err := repo.output(ctx, ".", "git", "diff", "HEAD")
	return errors.Join(errors.New(status+first(300, diff)), err)
}

func (r *repository) unchangedSince(ctx context.Context, before snapshot) error {
	after, err := r.snapshot(ctx)
	if err != nil {
		return err
	}
	files := changed(before, after)
	if len(files) == 0 {
		return nil
	}
	// The diff also shows changes that are older than the snapshot, which has no contents.
	diff, err := r.output(ctx, ".", "git", append([]string{"diff", "--"}, files...)...)
	return errors.Join(fmt.Errorf("changed: %s\n%s", strings.Join(files, " "), first(300, diff)), err)
}

// first returns the first lines of a text, and the number of the others.
func first(lines int, text string) string {
	all := strings.SplitAfter(text, "\n")
	if len(all) <= lines {
		return text
	}
	return fmt.Sprintf("%s... and %d lines more", strings.Join(all[:lines], ""), len(all)-lines)
}

// checkFormat runs gofmt, for machines without the linter. make lint is stricter.
func checkFormat(ctx context.Context, repo *repository) error {
	files, err := repo.files(ctx, "*.go")
	if err != nil {
		return err
	}
	for some := range slices.Chunk(files, 500) {
		unformatted, err := repo.output(ctx, ".", "gofmt", append([]string{"-l"}, some...)...)
		if err != nil {
			return err
		}
		if unformatted != "" {
			return errors.New(unformatted)
		}
	}
	return nil
}
