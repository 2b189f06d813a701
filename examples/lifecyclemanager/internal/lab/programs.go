package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver" //nolint:depguard // Neither is released.
	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"   //nolint:depguard // Not released.
)

// programs are paths of programs.
type programs struct{ agent, operator, certManager string }

// Build builds missing or outdated programs. The first build of the API server takes minutes.
func (l *Lab) Build(ctx context.Context) error {
	_ = os.Getenv("RUNTIME_WATCHER_SOURCES") // So that the cache of go test notices a change of the sources.
	root := repository()
	if _, err := apiserver.Assets(ctx, apiserver.AssetsOptions{Progress: progress(l.opts.Progress)}); err != nil {
		return err
	}
	bin := filepath.Join(root, "bin", "lifecyclemanager")
	l.programs = programs{agent: filepath.Join(bin, "agent"), operator: filepath.Join(bin, "lifecyclemanager")}
	build := func(dir, program, command string) error {
		_, err := goCommand(ctx, filepath.Join(root, dir), "build", "-o", program, command)
		return err
	}
	agentErr := build("cmd/agent", l.programs.agent, ".")
	operatorErr := build("examples", l.programs.operator, "./lifecyclemanager")
	certManager, err := goCommand(ctx, filepath.Join(root, "test"), "run", "./lab/certmanager/cmd/certmanager-assets")
	l.programs.certManager = lastLine(certManager)
	return errors.Join(agentErr, operatorErr, err)
}

// repository returns the root of the repository that this program was built from.
func repository() string { return filepath.Join(config(""), "..", "..", "..") }

// goCommand returns the standard output of the go command.
func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.SysProcAttr = dir, machine.OwnGroup()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
}

func lastLine(text string) string { return text[strings.LastIndexByte(text, '\n')+1:] }

// progress is a writer of lines.
type progress func(line string)

// Write implements [io.Writer].
func (p progress) Write(text []byte) (int, error) {
	if p != nil {
		p(strings.TrimSpace(string(text)))
	}
	return len(text), nil
}
