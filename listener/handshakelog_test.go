package listener_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/listener"
)

// A runtime without a certificate leaves one warning with cause, address and error, however often it comes back.
func TestFailedHandshakesAreLogged(t *testing.T) {
	t.Parallel()

	const attempts = 3

	var log bytes.Buffer

	ca := newAuthority(t, "ca")
	failed := make(chan string, attempts)
	l := newListener(t, listener.FromTLS(listener.PeerOptions{}), listener.InsecureAllowAll(), &recorder{}, listener.Options{
		Addr: "127.0.0.1:0", TLS: serverConfig(t, ca, tls.RequireAndVerifyClientCert, ca),
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Hooks:  listener.Hooks{HandshakeFailed: func(cause string) { failed <- cause }},
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)

	go func() { ended <- l.Start(ctx) }()

	eventually(t, func() bool { return l.Ready() == nil })

	for range attempts {
		if _, _, err := send(t, newClient(t, ca, false), "https://"+l.Addr().String()+"/v2/lifecycle/event", bodyV2, nil); err == nil {
			t.Error("a stranger was answered")
		}

		if cause := <-failed; cause != "no_certificate" {
			t.Errorf("cause %q, want no_certificate", cause)
		}
	}

	stop()

	if err := <-ended; err != nil {
		t.Error(err)
	}

	var warnings []string

	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "level=WARN") {
			warnings = append(warnings, line)
		}
	}

	if len(warnings) != 1 {
		t.Fatalf("warnings %q, want one", warnings)
	}

	for _, want := range []string{"TLS handshake failed", "cause=no_certificate", "remote=127.0.0.1:", "error="} {
		if !strings.Contains(warnings[0], want) {
			t.Errorf("no %q in %s", want, warnings[0])
		}
	}
}
