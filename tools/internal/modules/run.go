package modules

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/mod/module"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
)

// Git runs a git command in a folder and returns its standard output, trimmed.
func Git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	text, err := command.Output(cmd)

	return strings.TrimSpace(text), err
}

// Clone is a scratch clone of the repository. Go commands fetch the modules of the repository from
// it, as they fetch them from its public address.
type Clone struct{ Dir string }

// NewClone clones the repository in root into dir, on the new branch scratch at a commit. The clone
// has no remote.
func NewClone(ctx context.Context, root, dir, commit string) (*Clone, error) {
	_, err := Git(ctx, root, "clone", "--quiet", "--no-checkout", root, dir)
	for _, args := range [][]string{
		{"remote", "remove", "origin"},
		{"checkout", "--quiet", "--no-track", "-b", "scratch", commit},
	} {
		if err == nil {
			_, err = Git(ctx, dir, args...)
		}
	}
	return &Clone{Dir: dir}, err
}

// Commit commits all files, and moves the tags of the modules to that commit. With amend, it amends
// the previous commit.
func (c *Clone) Commit(ctx context.Context, title string, amend bool, tags ...string) error {
	args := []string{"commit", "--quiet", "--all", "--allow-empty", "--message", title}
	if amend {
		args = append(args, "--amend")
	}

	_, err := Git(ctx, c.Dir, args...)
	for _, tag := range tags {
		_, tagErr := Git(ctx, c.Dir, "tag", "--force", "--annotate", "--message", tag, tag)
		err = errors.Join(err, tagErr)
	}

	return err
}

// Run runs a command outside of the workspace and returns its standard output. The error contains
// all output.
func (c *Clone) Run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, c.environment()
	return command.Output(cmd)
}

// Install installs a program, such as example.com/program@v1.0.0, into the folder bin.
func (c *Clone) Install(ctx context.Context, bin, program string) error {
	_, err := c.Run(ctx, os.TempDir(), "env", "GOBIN="+bin, "go", "install", program)
	return err
}

func (c *Clone) environment() []string {
	count, _ := strconv.Atoi(os.Getenv("GIT_CONFIG_COUNT")) // 0 if it is not set.
	return append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "GOPRIVATE="+Root, "GONOPROXY=", "GONOSUMDB=",
		// The go command keeps an index of each module in its build cache, by version. The content
		// of a version can change before a release.
		"GODEBUG=goindex=0,"+os.Getenv("GODEBUG"),
		"GIT_CONFIG_COUNT="+strconv.Itoa(count+1),
		fmt.Sprintf("GIT_CONFIG_KEY_%d=url.file://%s.insteadOf", count, filepath.ToSlash(c.Dir)),
		fmt.Sprintf("GIT_CONFIG_VALUE_%d=https://%s", count, Root))
}

// Forget removes the modules at the versions, and the fetched repository, from the module cache.
func (c *Clone) Forget(ctx context.Context, all []Module, versions Versions) error {
	cache, err := c.Run(ctx, os.TempDir(), "go", "env", "GOMODCACHE")
	if err != nil || versions == (Versions{}) {
		return err
	}

	cache = strings.TrimSpace(cache)
	var patterns []string

	for _, m := range all {
		escaped, err := module.EscapePath(m.Path)
		if err != nil {
			return err
		}

		version := versions.Of(m)
		patterns = append(patterns, filepath.Join(cache, escaped+"@"+version),
			filepath.Join(cache, "cache", "download", escaped, "@v", version+".*"))
	}

	fetched, err := filepath.Glob(filepath.Join(cache, "cache", "vcs", "*.info"))
	for _, info := range fetched {
		if text, _ := os.ReadFile(info); strings.Contains(string(text), Root) {
			patterns = append(patterns, strings.TrimSuffix(info, ".info")+"*")
		}
	}

	for _, pattern := range patterns {
		found, _ := filepath.Glob(pattern) // Well-formed.
		for _, name := range found {
			makeWritable(name)
			err = errors.Join(err, os.RemoveAll(name))
		}
	}

	return err
}

// makeWritable lets the directories of a tree be removed: the module cache is read-only.
func makeWritable(name string) {
	root, err := os.OpenRoot(name)
	if err != nil {
		return // It is a file.
	}
	defer root.Close()

	_ = fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, _ error) error {
		if entry != nil && entry.IsDir() {
			_ = root.Chmod(name, 0o700)
		}
		return nil
	})
}
