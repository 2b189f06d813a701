package certificates

import (
	"bytes"
	"encoding/pem"
	"log/slog"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// Two Secrets with additional CAs, of which the second is as other tools write it: each of its CAs
// is trusted, or named in an error or in the log.
func TestEachAdditionalCACountsOrIsNamed(t *testing.T) {
	t.Parallel()

	var all [4]*testpki.CA
	for n := range all {
		ca, err := testpki.NewCA("additional-"+strings.Repeat("i", n+1), testpki.Options{})
		check(t, err)
		all[n] = ca
	}

	a := all[1].PEM
	b := all[2].PEM
	c := all[3].PEM
	glued := slices.Concat(bytes.TrimRight(a, "\n"), b, c)
	crl := pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: []byte{0x30, 0}})

	for name, tc := range map[string]struct {
		text         []byte
		count        int
		fault, named string
	}{
		"three":                         {slices.Concat(a, b, c), 4, "", ""},
		"three with CRLF":               {bytes.ReplaceAll(slices.Concat(a, b, c), []byte("\n"), []byte("\r\n")), 4, "", ""},
		"a CRL between them":            {slices.Concat(a, crl, b, c), 4, "", "X509 CRL"},
		"a line end is missing":         {glued, 0, "line end is missing", ""},
		"the third is cut off":          {slices.Concat(a, b, c[:len(c)-40]), 0, "cut off", ""},
		"a byte order mark":             {slices.Concat([]byte("\ufeff"), a, b, c), 0, "byte order mark", ""},
		"no CA that can be used at all": {crl, 0, "no certificate", ""},
	} {
		var log bytes.Buffer
		var objects []*corev1.Secret
		keys := []types.NamespacedName{{Namespace: "kcp", Name: "first"}, {Namespace: "kcp", Name: "second"}}

		for n, text := range [][]byte{all[0].PEM, tc.text} {
			objects = append(objects, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "kcp", Name: keys[n].Name}, Data: map[string][]byte{"ca.crt": text},
			})
		}

		set, err := New(newPlane(t, new([]types.UID), objects[0], objects[1]), Parts{
			Name:        types.NamespacedName{Namespace: "kcp", Name: "watcher"},
			DNSNames:    []string{"listener.example.com"},
			Unconfirmed: func(string, []core.RuntimeID) []core.RuntimeID { return nil },
		}, Options{AdditionalCAs: keys, Logger: slog.New(slog.NewTextHandler(&log, nil))})

		check(t, err)

		seen, err := set.observe(t.Context())

		if tc.fault != "" {
			if err == nil || !strings.Contains(err.Error(), tc.fault) || !strings.Contains(err.Error(), "kcp/second") {
				t.Errorf("%s: %v, want the Secret and %q", name, err, tc.fault)
			}
			continue
		}

		check(t, err)
		_, err = set.observe(t.Context())
		check(t, err)

		if len(seen.additional) != tc.count {
			t.Errorf("%s: %d CAs, want %d", name, len(seen.additional), tc.count)
		}

		times := strings.Count(log.String(), "X509 CRL")
		if tc.named != "" && times != 1 || tc.named == "" && times != 0 {
			t.Errorf("%s: the log names the block %d times: %s", name, times, &log)
		}
	}
}
