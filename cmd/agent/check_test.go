package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// Without managers and without reviews, no other line would show that the control plane is out of
// reach. In TLS 1.3 a server refuses a client certificate after the client has ended its handshake.
func TestTheControlPlaneIsTriedAtStart(t *testing.T) {
	t.Parallel()
	const failed = "cannot connect to the control plane: events are kept until it works"
	p, other := newPKI(t), newPKI(t)
	_, cert, key := other.volume.Paths()
	for name, test := range map[string]struct {
		kcp                    *controlPlane
		level, message, reason string
		more                   []string
	}{
		"accepted": {newControlPlane(t, p, http.StatusOK), "INFO", "control plane accepts the connection", "", nil},
		"closed": {
			newControlPlane(t, p, http.StatusOK), "WARN", failed, "connection refused", []string{"KCP_ADDR=127.0.0.1:1"},
		},
		"other CA": {newControlPlane(t, other, http.StatusOK), "WARN", failed, "certificate", nil},
		"refused": {
			newControlPlane(t, p, http.StatusOK), "WARN", failed, "remote error: tls:",
			[]string{"TLS_CERT=" + cert, "TLS_KEY=" + key},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, p, env(p, test.kcp, test.more...))
			line := s.log.wait(t, test.message, 1)[0]
			if address := fmt.Sprint(line["address"]); line["level"] != test.level || !strings.HasPrefix(address, "127.0.0.1:") {
				t.Errorf("line %v, want level %s and the address", line, test.level)
			}
			if reason := fmt.Sprint(line["error"]); !strings.Contains(reason, test.reason) {
				t.Errorf("error %q, want %q in it", reason, test.reason)
			}
			s.stop(t)
		})
	}
}
