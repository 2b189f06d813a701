package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/measure"
	"github.com/runtime-watcher/runtime-watcher/tools/internal/modules"
)

func (r *release) load() (err error) {
	if r.modules, err = modules.Load(r.clone()); err != nil {
		return err
	}
	for _, m := range r.modules {
		if m.Released() {
			r.released = append(r.released, m)
		}
	}
	r.proxy = modules.NewProxy(filepath.Join(r.scratch, "proxy"))
	r.commands = modules.NewGo(r.proxy)
	return nil
}

// pin sets the version in every go.mod. A go.sum has the hashes of its siblings, which are packed
// before it.
func (r *release) pin(context.Context) error {
	for _, m := range r.modules {
		if err := modules.Pin(r.clone(), m, r.version); err != nil {
			return err
		}
		if !m.Released() {
			continue
		}
		err := errors.Join(r.addSums(m), r.proxy.Add(r.clone(), m, r.version, time.Now()))
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *release) addSums(m modules.Module) error {
	if len(m.Siblings) == 0 {
		return nil
	}
	name := filepath.Join(r.clone(), filepath.FromSlash(m.Dir), "go.sum")
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	lines := slices.DeleteFunc(slices.Collect(strings.Lines(string(text))), func(line string) bool {
		return strings.HasPrefix(line, measure.Root)
	})
	var own []string
	for _, sibling := range slices.Sorted(slices.Values(m.Siblings)) {
		sums, err := r.proxy.Sums(modules.Module{Path: measure.Path(sibling)}, r.version)
		if err != nil {
			return err
		}
		own = append(own, sums)
	}
	place, _ := slices.BinarySearch(lines, measure.Root)
	lines = slices.Insert(lines, place, own...)
	return os.WriteFile(name, []byte(strings.Join(lines, "")), 0o600)
}
