package lab

import (
	"context"
	"errors"
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"   //nolint:depguard // Neither is released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager" //nolint:depguard // Neither is released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"     //nolint:depguard // Neither is released.
)

// programs are paths of programs.
type programs struct{ agent, operator, manager string }

// Build builds missing or outdated programs. The first build of the API server takes minutes.
func (l *Lab) Build(ctx context.Context) error {
	if _, err := apiserver.Assets(ctx, apiserver.AssetsOptions{Progress: l.opts.Progress}); err != nil {
		return err
	}
	var errs [4]error
	var paths [3]string
	for i, folder := range []string{"cmd/agent", "examples/lifecyclemanager", "examples/lifecyclemanager/module"} {
		_, _ = fmt.Fprintln(l.opts.Progress, "building", folder) // It cannot fail.
		paths[i], errs[i] = machine.Build(ctx, folder, "lifecyclemanager", l.Dir)
	}
	l.programs = programs{agent: paths[0], operator: paths[1], manager: paths[2]}
	_, errs[3] = certmanager.Assets(ctx, certmanager.AssetsOptions{Progress: l.opts.Progress})
	return errors.Join(errs[:]...)
}
