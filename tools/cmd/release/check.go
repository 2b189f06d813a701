package main

import (
	"context"
	"fmt"
	"path/filepath"
)

// build checks each released module alone, as of its tag. Its siblings come from the proxy.
func (r *release) build(ctx context.Context) error {
	for _, m := range r.released {
		dir := filepath.Join(r.clone(), filepath.FromSlash(m.Dir))
		for _, args := range [][]string{{"mod", "tidy", "-diff"}, {"vet", "./..."}} {
			if _, err := r.commands.Run(ctx, dir, "go", args...); err != nil {
				return fmt.Errorf("%s: %w", m.Dir, err)
			}
		}
	}
	changed, err := git(ctx, r.clone(), "status", "--porcelain")
	if err == nil && changed != "" {
		err = fmt.Errorf("the build changes files:\n%s", changed)
	}
	return err
}

// install is for users of the agent. It fails for a module with replace lines.
func (r *release) install(ctx context.Context) error {
	for _, m := range r.released {
		if m.Dir == "cmd/agent" {
			return r.commands.Install(ctx, filepath.Join(r.scratch, "bin"), m.Path+"@"+r.version)
		}
	}
	return nil
}
