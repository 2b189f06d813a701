package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/google/licensecheck"
	"golang.org/x/mod/module"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
)

// allowed are the licenses (SPDX) that a part of the agent may have. MPL-2.0 asks for its text in
// the image and for the place of the source, which the SBOM has.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0"}

const (
	own  = "Apache-2.0"
	root = "github.com/runtime-watcher/runtime-watcher/"
)

// part is a module in a binary, or the standard library, with its license texts.
type part struct {
	path, version string
	license       string            // an SPDX expression
	texts         map[string][]byte // by the name of the file
}

var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)`)

// newPart reads the license texts of a part in dir. Each recognised license must be allowed.
func newPart(pkg, version, dir string) (part, error) {
	p := part{path: pkg, version: version, texts: map[string][]byte{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return p, err
	}

	var ids []string
	for _, entry := range entries {
		if entry.IsDir() || !licenseFile.MatchString(entry.Name()) {
			continue
		}

		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return p, err
		}

		p.texts[entry.Name()] = text
		for _, match := range licensecheck.Scan(text).Match {
			ids = append(ids, match.ID)
		}
	}

	slices.Sort(ids)
	// A grant of patents is not a separate license.
	ids = slices.DeleteFunc(slices.Compact(ids), func(id string) bool { return strings.HasPrefix(id, "GooglePatent") })
	p.license = strings.Join(ids, " AND ")

	forbidden := slices.ContainsFunc(ids, func(id string) bool { return !slices.Contains(allowed, id) })
	if len(ids) == 0 || forbidden {
		return p, fmt.Errorf("%s@%s has the license %q, allowed are %v", pkg, version, p.license, allowed)
	}

	return p, nil
}

// partsOf returns the parts of a binary except for the modules of this repository.
func partsOf(ctx context.Context, info *debug.BuildInfo) ([]part, error) {
	goroot, err := goEnv(ctx, "GOROOT")
	if err != nil {
		return nil, err
	}

	library, err := newPart("stdlib", strings.TrimPrefix(info.GoVersion, "go"), goroot)
	parts := []part{library}
	errs := []error{err}

	for _, dependency := range info.Deps {
		if dependency.Replace == nil && !strings.HasPrefix(dependency.Path+"/", root) {
			p, err := modulePart(ctx, dependency.Path, dependency.Version)
			parts, errs = append(parts, p), append(errs, err)
		}
	}

	return parts, errors.Join(errs...)
}

// modulePart reads a part from the module cache, where a build has put it.
func modulePart(ctx context.Context, pkg, version string) (part, error) {
	cache, err := goEnv(ctx, "GOMODCACHE")
	if err != nil {
		return part{}, err
	}

	escaped, err := module.EscapePath(pkg)
	if err != nil {
		return part{}, err
	}

	return newPart(pkg, version, filepath.Join(cache, filepath.FromSlash(escaped)+"@"+version))
}

func goEnv(ctx context.Context, name string) (string, error) {
	value, err := command.Output(exec.CommandContext(ctx, "go", "env", name))
	return strings.TrimSpace(value), err
}

// expression joins the licenses of all parts and of this repository.
func expression(parts []part) string {
	ids := []string{own}
	for _, p := range parts {
		ids = append(ids, strings.Split(p.license, " AND ")...)
	}

	slices.Sort(ids)
	return strings.Join(slices.Compact(ids), " AND ")
}

// notices returns the license texts by their names in the image.
func notices(parts []part) map[string][]byte {
	all := map[string][]byte{}
	for _, p := range parts {
		for name, text := range p.texts {
			all[path.Join("licenses", p.path, name)] = text
		}
	}
	return all
}

// printLicenses prints the license of each part of the agent in the working directory. It writes
// the texts below dir, unless dir is "".
func printLicenses(ctx context.Context, stdout io.Writer, dir string) error {
	list := exec.CommandContext(ctx, "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Version}}{{end}}", ".")
	list.Env = append(os.Environ(), "GOOS=linux", "GOWORK=off", "CGO_ENABLED=0")
	list.Dir = filepath.Join("cmd", "agent")
	linked, err := command.Output(list)
	if err != nil {
		return err
	}

	goversion, err := goEnv(ctx, "GOVERSION")
	if err != nil {
		return err
	}

	info := &debug.BuildInfo{GoVersion: goversion}
	lines := strings.Split(strings.TrimSpace(linked), "\n")
	slices.Sort(lines)
	for _, line := range slices.Compact(lines) {
		pkg, version, _ := strings.Cut(line, " ")
		info.Deps = append(info.Deps, &debug.Module{Path: pkg, Version: version})
	}

	parts, err := partsOf(ctx, info)
	for _, p := range parts {
		fmt.Fprintf(stdout, "%-26s %s %s\n", p.license, p.path, p.version)
	}

	if err != nil || dir == "" {
		return err
	}

	for name, text := range notices(parts) {
		file := filepath.Join(dir, strings.TrimPrefix(name, "licenses/"))
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, text, 0o644)); err != nil {
			return err
		}
	}

	return nil
}
