package httpserver

import "testing"

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
		if got := Origin(remote); got != want {
			t.Errorf("origin of %s is %s, want %s", remote, got, want)
		}
	}
}
