package crowd_test

import (
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core/crowd"
)

func TestOrigin(t *testing.T) {
	t.Parallel()

	for remote, want := range map[string]string{
		"192.0.2.7:443":               "192.0.2.7",
		"[::ffff:192.0.2.7]:443":      "192.0.2.7",
		"[2001:db8:1:2:3::4]:443":     "2001:db8:1:2::/64",
		"[2001:db8:1:2:ffff::1]:8443": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:443":          "fe80::/64",
		"@":                           "@",
		"/run/agent.sock":             "/run/agent.sock",
		"localhost:443":               "localhost:443",
	} {
		if got := crowd.Origin(remote); got != want {
			t.Errorf("%s counts to %s, want %s", remote, got, want)
		}
	}
}
