package lab

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// Check runs "agent check", and returns its output and exit code. It must end.
func Check(t testing.TB, env map[string]string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, Build(t, "cmd/agent"), "check")
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// Telling returns the first line of a check that fails, or the line of the heartbeat if none fails.
func Telling(out string, code int) string {
	prefix := "FAIL"
	if code == 0 {
		prefix = "ok    heartbeat"
	}
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, prefix) {
			return line
		}
	}
	return ""
}
