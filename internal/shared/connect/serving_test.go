package connect

import (
	"crypto/x509"
	"encoding/asn1"
	"net"
	"strings"
	"testing"
)

// A certificate that API servers reject has a fault with its reason.
func TestServingFaults(t *testing.T) {
	t.Parallel()
	names := []string{"agent.kyma-system.svc"}
	for name, test := range map[string]struct {
		leaf x509.Certificate
		want []string
	}{
		"server": {
			x509.Certificate{DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, nil,
		},
		"no usage":         {x509.Certificate{DNSNames: names}, nil},
		"any usage":        {x509.Certificate{DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}, nil},
		"IP":               {x509.Certificate{IPAddresses: []net.IP{net.IPv6loopback}}, nil},
		"Common Name only": {x509.Certificate{}, []string{"no DNS name"}},
		"client only": {
			x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, []string{"serverAuth", "no DNS name"},
		},
		"unknown usage": {
			x509.Certificate{DNSNames: names, UnknownExtKeyUsage: []asn1.ObjectIdentifier{{1, 2}}}, []string{"serverAuth"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			faults := ServingFaults(&test.leaf)
			if len(faults) != len(test.want) {
				t.Fatalf("faults %q, want %q", faults, test.want)
			}

			for i, want := range test.want {
				if !strings.Contains(faults[i], want) {
					t.Errorf("fault %q, want %q in it", faults[i], want)
				}
			}
		})
	}
}
