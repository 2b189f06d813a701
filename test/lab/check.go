package lab

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
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

// VolumeEnv has the settings of an agent with the key material of a volume.
func VolumeEnv(volume *testpki.Volume) map[string]string {
	ca, cert, key := volume.Paths()
	return map[string]string{"CA_CERT": ca, "TLS_CERT": cert, "TLS_KEY": key}
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
