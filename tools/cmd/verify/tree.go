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

// snapshot maps every file that git tracks or would add to what it holds.
type snapshot map[string][sha256.Size]byte

func (r *repository) snapshot(ctx context.Context) (snapshot, error) {
	files, err := r.files(ctx)
	if err != nil {
		return nil, err
	}
	taken := make(snapshot, len(files))
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(r.root, filepath.FromSlash(file)))
		// Gone since it was listed, which is what a snapshot may see.
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

// changed names the files that differ between two snapshots, sorted.
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

// checkGenerated runs go generate in every module and wants nothing to change.
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

// checkClean wants the tree to be as it was before all checks, and where CI says so, to be what is committed.
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
	// What was changed before it was generated shows up, too: a diff against the snapshot would need its contents.
	diff, err := r.output(ctx, ".", "git", append([]string{"diff", "--"}, files...)...)
	return errors.Join(fmt.Errorf("changed: %s\n%s", strings.Join(files, " "), first(300, diff)), err)
}

// first returns the first lines of a text, and says so when there are more.
func first(lines int, text string) string {
	all := strings.SplitAfter(text, "\n")
	if len(all) <= lines {
		return text
	}
	return fmt.Sprintf("%s... and %d lines more", strings.Join(all[:lines], ""), len(all)-lines)
}

// checkFormat is for machines without the linter: make lint asks for more.
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
