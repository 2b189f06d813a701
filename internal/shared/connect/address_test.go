package connect_test

import (
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/internal/shared/connect"
)

// Spellings of one address are one address.
func TestAddressesHaveOneForm(t *testing.T) {
	t.Parallel()
	for want, spellings := range map[string][]string{
		"https://kcp.example.com": {
			"kcp.example.com", "KCP.Example.COM", "kcp.example.com.", "https://kcp.example.com./", "HTTPS://kcp.example.com",
			" kcp.example.com\n", "ｋｃｐ.example.com", "kcp。example。com。",
		},
		"https://kcp.example.com:443": {
			"kcp.example.com:443", "kcp.example.com.:443", "https://KCP.example.com:0443",
		},
		"https://kcp.example.com:8443": {"kcp.example.com:8443", "kcp.example.com.:8443/"},
		"https://xn--bcher-kva.example:8443": {
			"bücher.example:8443", "BÜCHER.example.:8443", "xn--bcher-kva.example:8443", "XN--BCHER-KVA.example:8443",
			"https://b%C3%BCcher.example:8443", "bu\u0308cher.example:8443",
		},
		"https://10.0.0.1:443":                      {"10.0.0.1:443", "[::ffff:10.0.0.1]:443"},
		"https://[fd00::1]:443":                     {"[fd00::1]:443", "[FD00::1]:443", "[fd00:0:0:0:0:0:0:1]:443", "[fd00:0000::0001]:443"},
		"https://[fd00::1]":                         {"[fd00::1]", "https://[FD00::1]/"},
		"https://[fe80::1%25eth0]:443":              {"[fe80::1%25eth0]:443"},
		"https://listener_1.svc.cluster.local:8443": {"listener_1.svc.cluster.local.:8443"},
	} {
		for _, spelling := range spellings {
			if have, err := connect.ParseAddress(spelling); err != nil || have.String() != want {
				t.Errorf("%q: %v, %v, want %s", spelling, have, err, want)
			}
		}
	}
}

// An address that could lead elsewhere is refused, and the error repeats no password.
func TestAddressesThatAreRefused(t *testing.T) {
	t.Parallel()
	for address, says := range map[string]string{
		"": "want host:port", "kcp:": "want host:port", "kcp:0": "want host:port", "kcp:65536": "want host:port",
		"http://kcp": "want host:port", "kcp/path": "want host:port", "kcp?query": "want host:port", "kcp#x": "want host:port",
		"::1:8443": "brackets", "fd00::1": "brackets", "localhost:1:2": "brackets", "user:secret@kcp": "with credentials",
		"kcp..example": "DNS name", "kcp.example..": "DNS name", ".": "DNS name", ".kcp": "DNS name", "-kcp": "DNS name", "kcp-": "DNS name",
		"kcp,other:443": "DNS name", "*.example:443": "DNS name", "k$p": "DNS name", "kcp\ufffd.example": "ASCII",
		strings.Repeat("a", 64) + ".example": "DNS name", strings.Repeat("abc.", 64) + "de": "DNS name",
		"010.0.0.1": "IPv4", "10.0.1": "IPv4", "256.0.0.1:443": "IPv4", "2130706433": "IPv4", "[fd00::g]:443": "want host:port",
	} {
		have, err := connect.ParseAddress(address)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, %v, want it refused with %q", address, have, err, says)
		}
	}
}

// Spellings of one host have one form.
func TestHosts(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		"Name.": "name", "[FD00::1]": "fd00::1", "fd00::1": "fd00::1", "::ffff:1.2.3.4": "1.2.3.4", "bücher.example.": "xn--bcher-kva.example",
		"name:443": "", "https://name": "", "": "", "a b": "",
	} {
		if have, err := connect.ParseHost(host); have != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", host, have, err, want)
		}
	}
}

func FuzzParseAddress(f *testing.F) {
	for _, seed := range []string{
		"kcp.example.:443", "[fd00::1%25a]", "bücher.example", "https://a:1/", "ﬀ.example", "xn--a", "a。b", "[::ffff:1.2.3.4]:1",
	} {
		f.Add(seed)
	}

	f.Fuzz(func(t *testing.T, address string) {
		parsed, err := connect.ParseAddress(address)
		if err != nil {
			return
		}

		again, err := connect.ParseAddress(parsed.String())
		if err != nil || again.String() != parsed.String() {
			t.Errorf("%q is %q, and that is %v, %v", address, parsed, again, err)
		}
	})
}
