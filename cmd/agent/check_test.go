package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// Without managers and without reviews, no other line would show that the control plane is out of
// reach.
func TestTheControlPlaneIsTriedAtStart(t *testing.T) {
	t.Parallel()
	p, other := newPKI(t), newPKI(t)
	for name, test := range map[string]struct {
		address, level, message, reason string
	}{
		"accepted": {newControlPlane(t, p, http.StatusOK).address(), "INFO", "control plane accepts the connection", ""},
		"closed":   {"127.0.0.1:1", "WARN", failedCheck, "connection refused"},
		"other CA": {newControlPlane(t, other, http.StatusOK).address(), "WARN", failedCheck, "certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, p, env(p, newControlPlane(t, p, http.StatusOK), "KCP_ADDR="+test.address))
			line := s.log.wait(t, test.message, 1)[0]
			if line["level"] != test.level || line["address"] != test.address {
				t.Errorf("line %v, want level %s and address %s", line, test.level, test.address)
			}
			if reason := fmt.Sprint(line["error"]); !strings.Contains(reason, test.reason) {
				t.Errorf("error %q, want %q in it", reason, test.reason)
			}
			s.stop(t)
		})
	}
}

const failedCheck = "cannot connect to the control plane: events are kept until it works"

// In TLS 1.3 a server refuses a client certificate after the client has ended its handshake.
func TestARefusedClientCertificateIsNoticedAtStart(t *testing.T) {
	t.Parallel()
	p, clients := newPKI(t), newPKI(t)
	kcp := newControlPlane(t, p, http.StatusOK)
	ca, _, _ := p.volume.Paths()
	_, cert, key := clients.volume.Paths()
	s := start(t, clients, env(clients, kcp, "CA_CERT="+ca, "TLS_CERT="+cert, "TLS_KEY="+key))
	line := s.log.wait(t, failedCheck, 1)[0]
	if reason := fmt.Sprint(line["error"]); !strings.Contains(reason, "remote error: tls:") {
		t.Errorf("error %q, want the refusal of the server", reason)
	}
	s.stop(t)
}
