package main

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"
)

func TestCheckCommand(t *testing.T) {
	t.Parallel()
	p, kcp := newPlane(t)
	for name, test := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"sound": {[]string{"--managers=widgets"}, 0, []string{"ok    heartbeat", "skip  canary", "0 failed"}},
		"v2":    {[]string{"--kcp-contract=v2"}, 0, []string{"warn  managers", "skip  heartbeat"}},
		"settings": {
			[]string{"--managers=A", "--nonsense", "--development"},
			exitUsage,
			[]string{"FAIL  settings", "-nonsense", "warn  settings", "2 failed"},
		},
		"refused": {[]string{"--managers=widgets", "--kcp-server-name=other"}, exitFailure, []string{"FAIL  TLS", "skip  heartbeat"}},
		"help":    {[]string{"--help"}, 0, []string{"agent check", "--kcp-addr"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			err := run(t.Context(), append([]string{"check"}, test.args...), lookup(env(p, kcp)), &out, &bytes.Buffer{})
			if code := exitCode(err); code != test.code {
				t.Errorf("exit code %d (%v), want %d", code, err, test.code)
			}
			for _, want := range test.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in the output:\n%s", want, &out)
				}
			}
		})
	}
}

// A control plane that never answers must not keep an init container for ever.
func TestCheckIsBounded(t *testing.T) {
	t.Parallel()
	p, kcp := newPlane(t)
	closed := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	kcp.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		cancel() // As at the end of its time.
		<-closed
	})
	t.Cleanup(func() { close(closed) }) // Before the server is closed.
	var out bytes.Buffer
	args := []string{"check", "--managers=widgets", "--forward-timeout=1h", "--canary-lease=a/b"}
	if err := run(ctx, args, lookup(env(p, kcp)), &out, &bytes.Buffer{}); exitCode(err) != exitFailure {
		t.Errorf("error %v, want a failure", err)
	}
	for _, want := range []string{"FAIL  heartbeat             no answer", "skip  canary                no time is left"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the output:\n%s", want, &out)
		}
	}
}

// The sender of the check must be known from its heartbeat.
func TestHeartbeatOfACheckLeaves(t *testing.T) {
	t.Parallel()
	p, kcp := newPlane(t)
	noError(t, run(t.Context(), []string{"check", "--managers=widgets", "--instance=agent-0"}, lookup(env(p, kcp)), &bytes.Buffer{}, &bytes.Buffer{}))
	beat := <-kcp.beats
	if !beat.Leaving || beat.Sequence != 0 || beat.Number != 1 || beat.Instance != "agent-0/check" {
		t.Errorf("heartbeat %+v, want the first and last one of an epoch without events", beat)
	}
}

func TestCheckReportsThatItCannotPrint(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	err := run(t.Context(), []string{"check"}, lookup(env(p, newControlPlane(t, p, http.StatusOK))), brokenWriter{}, &bytes.Buffer{})
	if err == nil {
		t.Error("no error, want that of the output")
	}
}
