package xfcc_test

import (
	"crypto/x509"
	"errors"
	"slices"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/listener/internal/xfcc"
)

func TestEncode(t *testing.T) {
	t.Parallel()
	certs := []*x509.Certificate{newCertificate(t, "runtime-a"), newCertificate(t, "ca")}
	header, err := xfcc.Encode(certs)
	if err != nil {
		t.Fatal(err)
	}
	elements, err := xfcc.Parse([]string{header})
	if err != nil || len(elements) != 1 {
		t.Fatalf("%d elements, error %v, want one", len(elements), err)
	}
	leaf, chain, err := elements[0].Certificates()
	if err != nil || !leaf.Equal(certs[0]) || len(chain) != 1 || !chain[0].Equal(certs[1]) {
		t.Errorf("certificates %v and %v, error %v, want those that were encoded", leaf, chain, err)
	}
}

// A client chooses what it shows behind its own certificate, and how much.
func TestEncodeKeepsTheBounds(t *testing.T) {
	t.Parallel()
	small, large := newCertificate(t, "a"), &x509.Certificate{Raw: make([]byte, xfcc.MaxSize*4/5)}
	for name, test := range map[string]struct {
		certs []*x509.Certificate
		want  int // certificates
	}{
		"too many":             {slices.Repeat([]*x509.Certificate{small}, 20), 10},
		"no room for all":      {[]*x509.Certificate{small, small, large, small}, 2},
		"no room for the own":  {[]*x509.Certificate{large, small}, 0},
		"more than the header": {[]*x509.Certificate{small, {Raw: make([]byte, 8*xfcc.MaxSize)}}, 1},
	} {
		header, err := xfcc.Encode(test.certs)
		if test.want == 0 {
			if !errors.Is(err, xfcc.ErrTooLarge) {
				t.Errorf("%s: %q, error %v, want %v", name, header, err, xfcc.ErrTooLarge)
			}
			continue
		}
		elements, err := xfcc.Parse([]string{header})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, chain, err := elements[0].Certificates(); err != nil || len(chain)+1 != test.want {
			t.Errorf("%s: %d certificates, error %v, want %d", name, len(chain)+1, err, test.want)
		}
	}
}
