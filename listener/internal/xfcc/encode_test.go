package xfcc_test

import (
	"crypto/x509"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/listener/internal/xfcc"
)

func TestEncode(t *testing.T) {
	t.Parallel()

	certs := []*x509.Certificate{newCertificate(t, "runtime-a"), newCertificate(t, "ca")}

	elements, err := xfcc.Parse([]string{xfcc.Encode(certs)})
	if err != nil || len(elements) != 1 {
		t.Fatalf("%d elements, error %v, want one", len(elements), err)
	}

	leaf, chain, err := elements[0].Certificates()
	if err != nil || !leaf.Equal(certs[0]) || len(chain) != 1 || !chain[0].Equal(certs[1]) {
		t.Errorf("certificates %v and %v, error %v, want those that were encoded", leaf, chain, err)
	}
}
