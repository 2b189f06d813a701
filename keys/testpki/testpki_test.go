package testpki_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

const clientAuth, serverAuth = x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func verify(root *testpki.CA, leaf *testpki.Leaf, usage x509.ExtKeyUsage) error {
	intermediates := x509.NewCertPool()
	intermediates.AppendCertsFromPEM(leaf.CertPEM)
	_, err := leaf.TLS.Leaf.Verify(x509.VerifyOptions{
		Roots: root.Pool(), Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{usage},
	})
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}

	return nil
}

// Certificates for tests verify as their names promise, and the wrong ones do not.
func TestIssued(t *testing.T) {
	t.Parallel()

	root := must(testpki.NewCA("root", testpki.Options{}))
	intermediate := must(root.Intermediate("intermediate", testpki.Options{}))
	past := time.Now().Add(-time.Minute)
	future := time.Now().Add(time.Minute)
	for name, tc := range map[string]struct {
		leaf   *testpki.Leaf
		usage  x509.ExtKeyUsage
		refuse bool
	}{
		"client":                {must(root.Client("skr-1", testpki.Options{})), clientAuth, false},
		"server":                {must(root.Server("kcp", testpki.Options{})), serverAuth, false},
		"by intermediate":       {must(intermediate.Client("skr-1", testpki.Options{})), clientAuth, false},
		"server used as client": {must(root.Server("kcp", testpki.Options{})), clientAuth, true},
		"expired":               {must(root.Client("x", testpki.Options{NotAfter: past})), clientAuth, true},
		"not yet valid":         {must(root.Client("x", testpki.Options{NotBefore: future})), clientAuth, true},
		"self-signed":           {must(testpki.SelfSigned("x", testpki.Options{})), clientAuth, true},
		"of a CA of the same name": {
			must(must(testpki.NewCA("root", testpki.Options{})).Client("x", testpki.Options{})), clientAuth, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := verify(root, tc.leaf, tc.usage); (err != nil) != tc.refuse {
				t.Errorf("refused: %v, want refused: %v", err, tc.refuse)
			}
		})
	}
}

// A heartbeat reports a certificate that expires soon. A new one must not be reported.
func TestLeavesLiveLong(t *testing.T) {
	t.Parallel()

	const month = 30 * 24 * time.Hour
	root := must(testpki.NewCA("root", testpki.Options{}))
	for _, leaf := range []*testpki.Leaf{
		must(root.Client("skr-1", testpki.Options{})),
		must(root.Server("kcp", testpki.Options{})),
		must(testpki.SelfSigned("skr-1", testpki.Options{})),
	} {
		if left := time.Until(leaf.TLS.Leaf.NotAfter); left < month {
			t.Errorf("%s expires in %v, want at least %v", leaf.TLS.Leaf.Subject, left, month)
		}
	}
}

// Names of each kind are in the certificate, and a broken URI is an error.
func TestSubjectAlternativeNames(t *testing.T) {
	t.Parallel()

	root := must(testpki.NewCA("root", testpki.Options{}))
	leaf := must(root.Client("skr-1", testpki.Options{
		DNSNames: []string{"skr-1.example.com"}, IPs: []net.IP{net.IPv4(192, 0, 2, 1)},
		URIs: []string{"spiffe://example.com/skr-1"},
	})).TLS.Leaf

	got := fmt.Sprint(leaf.Subject.CommonName, leaf.DNSNames, leaf.IPAddresses, leaf.URIs)
	if want := "skr-1[skr-1.example.com] [192.0.2.1] [spiffe://example.com/skr-1]"; got != want {
		t.Errorf("have %s, want %s", got, want)
	}
	if _, err := root.Client("skr-1", testpki.Options{URIs: []string{"%"}}); err == nil {
		t.Error("a broken URI must be refused")
	}
}

// A write replaces all files together, as a kubelet does, and leaves one generation behind.
func TestVolume(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	volume := testpki.NewVolume(dir)
	root := must(testpki.NewCA("root", testpki.Options{}))

	for range 3 {
		leaf := must(root.Client("skr-1", testpki.Options{}))
		if err := volume.Write(testpki.Files(leaf, root)); err != nil {
			t.Fatal(err)
		}

		_, cert, key := volume.Paths()
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}

		if !pair.Leaf.Equal(leaf.TLS.Leaf) {
			t.Error("the files are not those of the newest leaf")
		}
	}

	if old := must(filepath.Glob(filepath.Join(dir, "..generation_*"))); len(old) != 1 {
		t.Errorf("generations left: %v, want one", old)
	}
	if err := volume.Write(map[string][]byte{"ca.crt": root.PEM}); err != nil {
		t.Fatal(err)
	}

	if _, err := os.Stat(volume.Path("tls.key")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the key is still there: %v", err)
	}
}

func ExampleCA_Client() {
	root, err := testpki.NewCA("runtime-watcher", testpki.Options{})
	if err != nil {
		panic(err)
	}

	leaf, err := root.Client("skr-1", testpki.Options{DNSNames: []string{"skr-1.example.com"}})
	if err != nil {
		panic(err)
	}

	fmt.Println(leaf.TLS.Leaf.Subject, "by", leaf.TLS.Leaf.Issuer)
	// Output: CN=skr-1 by CN=runtime-watcher
}
