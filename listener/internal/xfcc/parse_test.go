package xfcc_test

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener/internal/xfcc"
)

// Each form that Envoy and other proxies write is read, including several elements, lines and SANs.
func TestParse(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name  string
		lines []string
		want  []xfcc.Element
	}{
		{name: "no line", lines: nil, want: nil},
		{
			name:  "all keys of the format",
			lines: []string{`By=spiffe://a/b;Hash=12ab;Cert="x%20y";Chain="z";Subject="CN=a,O=b";URI=spiffe://c/d;DNS=e.example`},
			want: []xfcc.Element{{
				Hash: "12ab", Cert: "x%20y", Chain: "z", Subject: "CN=a,O=b",
				URIs: []string{"spiffe://c/d"}, DNS: []string{"e.example"},
			}},
		},
		{
			name:  "keys in any case, space around separators",
			lines: []string{`hash = 12 ; CERT="x" , SUBJECT="" ; uri=`},
			want:  []xfcc.Element{{Hash: "12", Cert: "x"}, {}},
		},
		{
			name:  "keys that come more than once",
			lines: []string{`By=a;By=b;DNS=c;DNS=d;URI=e;URI=f`},
			want:  []xfcc.Element{{DNS: []string{"c", "d"}, URIs: []string{"e", "f"}}},
		},
		{
			name:  "several elements in several lines, in order",
			lines: []string{"Hash=1,Hash=2", "Hash=3"},
			want:  []xfcc.Element{{Hash: "1"}, {Hash: "2"}, {Hash: "3"}},
		},
		{
			name:  "separators and a key inside quotes are text",
			lines: []string{`Subject="CN=x;Cert=y,Hash=z";Cert="real"`},
			want:  []xfcc.Element{{Subject: "CN=x;Cert=y,Hash=z", Cert: "real"}},
		},
		{
			name:  "escaped quotes, as of a subject by RFC 4514",
			lines: []string{`Hash=1;Cert="c";Subject="CN=a\",Cert=\"evil\",\, \\ O=b\+c";URI=`},
			want:  []xfcc.Element{{Hash: "1", Cert: "c", Subject: `CN=a",Cert="evil",\, \ O=b\+c`}},
		},
		{
			name:  "unknown keys, and equals signs in an unquoted value",
			lines: []string{`X-New_1="a";URI=https://a/?b=c`},
			want:  []xfcc.Element{{URIs: []string{"https://a/?b=c"}}},
		},
		{
			name:  "as many elements as allowed",
			lines: []string{strings.TrimSuffix(strings.Repeat("By=,", xfcc.MaxElements), ",")},
			want:  make([]xfcc.Element, xfcc.MaxElements),
		},
		{
			name:  "as large as allowed",
			lines: []string{"Subject=" + strings.Repeat("x", xfcc.MaxSize-len("Subject="))},
			want:  []xfcc.Element{{Subject: strings.Repeat("x", xfcc.MaxSize-len("Subject="))}},
		},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			have, err := xfcc.Parse(test.lines)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, have); diff != "" {
				t.Errorf("elements (-want +have):\n%s", diff)
			}
		})
	}
}

// A header that two parsers could read differently is refused, because a client chooses parts of
// its text.
func TestParseRefuses(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name  string
		lines []string
		want  error
	}{
		{"an empty line", []string{""}, xfcc.ErrMalformed},
		{"an empty element", []string{"Hash=1,,Hash=2"}, xfcc.ErrMalformed},
		{"an empty last element", []string{"Hash=1,"}, xfcc.ErrMalformed},
		{"an empty pair", []string{"Hash=1;;DNS=a"}, xfcc.ErrMalformed},
		{"a pair without value", []string{"Hash"}, xfcc.ErrMalformed},
		{"a value without key", []string{"=1"}, xfcc.ErrMalformed},
		{"a key in quotes", []string{`"Hash"=1`}, xfcc.ErrMalformed},
		{"an open quote", []string{`Subject="CN=a`}, xfcc.ErrMalformed},
		{"a quote that is closed in the next line", []string{`Subject="CN=a`, `",Cert="x"`}, xfcc.ErrMalformed},
		{"a backslash at the end", []string{`Subject="CN=a\`}, xfcc.ErrMalformed},
		{"an escaped closing quote", []string{`Subject="CN=a\"`}, xfcc.ErrMalformed},
		{"text behind a quote", []string{`Subject="CN=a"b`}, xfcc.ErrMalformed},
		{"a quote inside an unquoted value", []string{`Subject=CN="a"`}, xfcc.ErrMalformed},
		{"a key twice", []string{`Cert="x";Cert="y"`}, xfcc.ErrMalformed},
		{"a key twice, the first time empty", []string{`Hash=;hash=1`}, xfcc.ErrMalformed},
		{"a control character", []string{"Hash=\x01"}, xfcc.ErrMalformed},
		{"a line break in quotes", []string{"Subject=\"a\nb\""}, xfcc.ErrMalformed},
		// A client sends the first half, to swallow the element of the gateway.
		{"a quote left open by a client", []string{`Subject=",Hash=1;Cert="evil";Subject="CN=a"`}, xfcc.ErrMalformed},
		{"too many elements", []string{strings.Repeat("By=,", xfcc.MaxElements) + "By="}, xfcc.ErrMalformed},
		{"one byte too many", []string{"Subject=" + strings.Repeat("x", xfcc.MaxSize-len("Subject=")+1)}, xfcc.ErrTooLarge},
		{"too many bytes over several lines", slices.Repeat([]string{"By=" + strings.Repeat("x", 8<<10)}, 5), xfcc.ErrTooLarge},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if have, err := xfcc.Parse(test.lines); !errors.Is(err, test.want) || have != nil {
				t.Errorf("Parse = %v, %v, want no elements and %v", have, err, test.want)
			}
		})
	}
}

// FuzzParse looks for a header that takes the parser out of its bounds, or that changes the element
// which the gateway appends to it.
func FuzzParse(f *testing.F) {
	cert := escape(newCertificate(f, "seed"))
	appended := `Hash=1;Cert="gateway";Subject="CN=a\"b\\,c";URI=`
	for _, seed := range []string{
		"", ",", ";", "=", `"`, `\`, `Subject="`, `Subject="\`, `Subject="\"`, `Hash=1;Cert="` + cert + `";Subject="CN=a\, b";URI=`,
		`By=a;By=b;Hash=;Subject="";URI=c;DNS=d,By=e`, `Cert="x";Subject="Cert=\"y\""`, strings.Repeat("By=,", 20), "Hash=1\nHash=2",
	} {
		f.Add(seed)
	}

	f.Fuzz(func(t *testing.T, header string) {
		lines := strings.Split(header, "\n")
		elements, err := xfcc.Parse(lines)
		if err == nil && (len(elements) == 0 || len(elements) > xfcc.MaxElements || len(header)-len(lines)+1 > xfcc.MaxSize) {
			t.Errorf("%d elements of %d bytes", len(elements), len(header))
		}

		for _, element := range elements {
			_, _, _ = element.Certificates()
		}

		elements, err = xfcc.Parse([]string{header + "," + appended})
		if err == nil && elements[len(elements)-1].Cert != "gateway" {
			t.Errorf("last element is %+v, want that of the gateway", elements[len(elements)-1])
		}
	})
}

// Each way of escaping that proxies use leads to the same certificate.
func TestCertificates(t *testing.T) {
	t.Parallel()

	a := newCertificate(t, "a")
	b := newCertificate(t, "b")
	upper := strings.ToUpper(hash(a))
	tests := []struct {
		name    string
		element xfcc.Element
		chain   int
	}{
		{"Cert alone", xfcc.Element{Cert: escape(a)}, 0},
		{"Cert and Chain", xfcc.Element{Cert: escape(a), Chain: escape(a, b)}, 2},
		{"Chain alone", xfcc.Element{Chain: escape(a, b)}, 1},
		{"Hash", xfcc.Element{Hash: hash(a), Cert: escape(a)}, 0},
		{"Hash in upper case", xfcc.Element{Hash: upper, Cert: escape(a)}, 0},
		{"plus signs that are not escaped", xfcc.Element{Cert: strings.ReplaceAll(escape(a), "%2B", "+")}, 0},
		{"a query", xfcc.Element{Cert: url.QueryEscape(text(a)), Chain: url.QueryEscape(text(a, b))}, 2},
		{"a plus for a space, and nothing else escaped", xfcc.Element{Cert: plusForSpace(a)}, 0},
		{"every byte escaped", xfcc.Element{Cert: escapeAll(a)}, 0},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			leaf, chain, err := test.element.Certificates()
			if err != nil {
				t.Fatal(err)
			}
			if !leaf.Equal(a) || len(chain) != test.chain {
				t.Errorf("certificate of %s with %d others, want that of a with %d", leaf.Subject, len(chain), test.chain)
			}
		})
	}
}

// Only whole certificates, and a hash that belongs to them, are accepted.
func TestCertificatesRefuses(t *testing.T) {
	t.Parallel()

	a := newCertificate(t, "a")
	b := newCertificate(t, "b")
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: a.Raw}))
	broken := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Raw[:len(a.Raw)/2]}))
	headers := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"a": "b"}, Bytes: a.Raw}))

	tests := []struct {
		name    string
		element xfcc.Element
		want    error
	}{
		{"nothing", xfcc.Element{}, xfcc.ErrNoCertificate},
		{"a hash alone", xfcc.Element{Hash: hash(a)}, xfcc.ErrNoCertificate},
		{"space alone", xfcc.Element{Cert: "%20%0A"}, xfcc.ErrNoCertificate},
		{"a broken escape", xfcc.Element{Cert: escape(a) + "%4"}, xfcc.ErrMalformedCertificate},
		{"an escape that is not hex", xfcc.Element{Cert: "%zz" + escape(a)}, xfcc.ErrMalformedCertificate},
		{"something else", xfcc.Element{Cert: "hello"}, xfcc.ErrMalformedCertificate},
		{"text before", xfcc.Element{Cert: "hello%0A" + escape(a)}, xfcc.ErrMalformedCertificate},
		{"text behind", xfcc.Element{Cert: escape(a) + "hello"}, xfcc.ErrMalformedCertificate},
		{"two in Cert", xfcc.Element{Cert: escape(a, b)}, xfcc.ErrMalformedCertificate},
		{"a key", xfcc.Element{Cert: url.PathEscape(key)}, xfcc.ErrMalformedCertificate},
		{"half a certificate", xfcc.Element{Cert: url.PathEscape(broken)}, xfcc.ErrMalformedCertificate},
		{"headers in PEM", xfcc.Element{Cert: url.PathEscape(headers)}, xfcc.ErrMalformedCertificate},
		{"a plus for a line break", xfcc.Element{Cert: strings.ReplaceAll(escape(a), "%0A", "+")}, xfcc.ErrMalformedCertificate},
		{"a plus before the dashes", xfcc.Element{Cert: "+" + escape(a)}, xfcc.ErrMalformedCertificate},
		{"a broken Chain", xfcc.Element{Cert: escape(a), Chain: "x"}, xfcc.ErrMalformedCertificate},
		{"a Chain without end", xfcc.Element{Cert: escape(a), Chain: strings.Repeat(escape(a), 11)}, xfcc.ErrMalformedCertificate},
		{"the Hash of another", xfcc.Element{Hash: hash(b), Cert: escape(a)}, xfcc.ErrHashMismatch},
		{"half a Hash", xfcc.Element{Hash: hash(a)[:32], Cert: escape(a)}, xfcc.ErrHashMismatch},
		{"a Hash that is not hex", xfcc.Element{Hash: "xyz", Cert: escape(a)}, xfcc.ErrHashMismatch},
	}

	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if _, _, err := test.element.Certificates(); !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
		})
	}
}

func newCertificate(tb testing.TB, name string) *x509.Certificate {
	tb.Helper()
	leaf, err := testpki.SelfSigned(name, testpki.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return leaf.TLS.Leaf
}

func text(certs ...*x509.Certificate) string {
	var text []byte
	for _, cert := range certs {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
	}
	return string(text)
}

// escape escapes as nginx and Envoy do, also plus and equals signs.
func escape(certs ...*x509.Certificate) string {
	return strings.NewReplacer("+", "%2B", "=", "%3D", "/", "%2F", "\n", "%0A", " ", "%20").Replace(text(certs...))
}

func plusForSpace(cert *x509.Certificate) string { return strings.ReplaceAll(text(cert), " ", "+") }

func escapeAll(cert *x509.Certificate) string {
	var escaped strings.Builder
	for _, c := range []byte(text(cert)) {
		escaped.WriteString("%" + hex.EncodeToString([]byte{c}))
	}
	return escaped.String()
}

func hash(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}
