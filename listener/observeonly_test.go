package listener_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// A verifier that is tried takes each event, and names each runtime and reason once.
func TestObserveOnly(t *testing.T) {
	var out bytes.Buffer
	domains := listener.DomainsFunc(func(_ context.Context, runtime core.RuntimeID, _ *core.WatchEvent) (string, error) {
		if runtime == "unknown" {
			return "", errors.New("not known yet")
		}
		return "right.example.com", nil
	})
	dry := listener.ObserveOnly(listener.SANPinning(domains), slog.New(slog.NewTextHandler(&out, nil)))
	for _, peer := range []core.Peer{
		{ID: "right", DNSNames: []string{"right.example.com"}},
		{ID: "wrong", DNSNames: []string{"wrong.example.com"}},
		{ID: "wrong", DNSNames: []string{"wrong.example.com"}},
		{ID: "unknown"},
	} {
		if err := dry.Verify(t.Context(), peer, &core.WatchEvent{}); err != nil {
			t.Errorf("%s: %v, want no error", peer.ID, err)
		}
	}
	text := out.String()
	if n := strings.Count(text, "level=WARN"); n != 2 {
		t.Errorf("%d lines, want 2:\n%s", n, text)
	}
	for _, want := range []string{"runtime=wrong reason=san_mismatch", "runtime=unknown reason=other"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestObserveOnlyNeedsAVerifier(t *testing.T) {
	none := listener.ObserveOnly(nil, nil)
	_, err := listener.New(listener.PeersFunc(known), none, map[core.Manager]core.Handler{}, listener.Options{})
	if err == nil || !strings.Contains(err.Error(), "verifier is nil") {
		t.Errorf("error %v, want one about the verifier", err)
	}
}
