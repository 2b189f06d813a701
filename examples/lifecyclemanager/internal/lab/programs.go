package lab

import (
	"context"
	"errors"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"   //nolint:depguard // Neither is released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager" //nolint:depguard // Neither is released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"     //nolint:depguard // Neither is released.
)

// programs are paths of programs.
type programs struct{ agent, operator, manager string }

// Build builds missing or outdated programs. The first build of the API server takes minutes.
func (l *Lab) Build(ctx context.Context) error {
	lines := progress(l.opts.Progress)
	if _, err := apiserver.Assets(ctx, apiserver.AssetsOptions{Progress: lines}); err != nil {
		return err
	}
	var errs [4]error
	l.programs.agent, errs[0] = machine.Build(ctx, "cmd/agent", "lifecyclemanager", l.Dir)
	l.programs.operator, errs[1] = machine.Build(ctx, "examples/lifecyclemanager", "lifecyclemanager", l.Dir)
	l.programs.manager, errs[2] = machine.Build(ctx, "examples/lifecyclemanager/module", "lifecyclemanager", l.Dir)
	_, errs[3] = certmanager.Assets(ctx, certmanager.AssetsOptions{Progress: lines})
	return errors.Join(errs[:]...)
}

// progress is a writer of lines.
type progress func(line string)

// Write implements [io.Writer].
func (p progress) Write(text []byte) (int, error) {
	if p != nil {
		p(strings.TrimSpace(string(text)))
	}
	return len(text), nil
}
