package consumer

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/measure"
)

// checkInstall installs the agent by its version. That fails for a module with replace lines.
func (w *world) checkInstall(ctx context.Context) (string, error) {
	bin := filepath.Join(w.dir, "bin")
	if err := w.Install(ctx, bin, measure.Path("cmd/agent")+"@"+w.version); err != nil {
		return "", err
	}
	said, err := w.Run(ctx, w.dir, filepath.Join(bin, "agent"), "-version")
	if err != nil {
		return "", err
	}
	if !strings.Contains(said, w.version) {
		return "", fmt.Errorf("agent -version prints %q, want %s", said, w.version)
	}
	return "go install .../cmd/agent@" + w.version, nil
}
