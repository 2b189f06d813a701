package keys_test

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

func pemBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// negativeSerial returns a complete certificate that crypto/x509 refuses.
func negativeSerial(ca *testpki.CA) []byte {
	der := bytes.Clone(ca.Certificate.Raw)
	// Version 3, and then the tag and the length of the serial number.
	at := bytes.Index(der, []byte{0xa0, 3, 2, 1, 2, 2})
	der[at+7] = 0x80 // With the sign bit alone, 0x7f would become 0xff, which is malformed before 0x80.

	return pemBlock("CERTIFICATE", der)
}

func glued(texts ...[]byte) []byte {
	for i, text := range texts {
		texts[i] = bytes.TrimRight(text, "\n")
	}
	return append(bytes.Join(texts, nil), '\n')
}

func eachLine(text []byte, change func(line string) string) []byte {
	lines := strings.SplitAfter(string(text), "\n")
	for i := range lines {
		if lines[i] != "" {
			lines[i] = change(lines[i])
		}
	}

	return []byte(strings.Join(lines, ""))
}

func utf16Text(text []byte) []byte {
	encoded := []byte{0xff, 0xfe}
	for _, unit := range utf16.Encode([]rune(string(text))) {
		encoded = append(encoded, byte(unit), byte(unit>>8))
	}
	return encoded
}

// without removes one of the lines of a text.
func without(text []byte, line int) []byte {
	lines := bytes.SplitAfter(text, []byte("\n"))
	return slices.Concat(slices.Delete(lines, line-1, line)...)
}

// What other tools and hands make of a CA bundle: each CA counts, or is named.
func TestBundlesOfOtherTools(t *testing.T) {
	t.Parallel()

	one := must(testpki.NewCA("one", testpki.Options{}))
	two := must(testpki.NewCA("two", testpki.Options{}))
	three := must(testpki.NewCA("three", testpki.Options{}))
	leaf := must(one.Client(runtime1, testpki.Options{}))
	a := one.PEM
	b := two.PEM
	c := three.PEM
	all := slices.Concat(a, b, c)

	for name, tc := range map[string]struct {
		text    []byte
		count   int
		skipped []string // one word of each notice
	}{
		"three":                  {all, 3, nil},
		"no line end at the end": {bytes.TrimRight(all, "\n"), 3, nil},
		"CRLF":                   {bytes.ReplaceAll(all, []byte("\n"), []byte("\r\n")), 3, nil},
		"spaces behind lines":    {eachLine(all, func(l string) string { return strings.TrimSuffix(l, "\n") + " \t\n" }), 3, nil},
		"Base64 in one line": {[]byte("-----BEGIN CERTIFICATE-----\n" +
			base64.StdEncoding.EncodeToString(one.Certificate.Raw) + "\n-----END CERTIFICATE-----\n"), 1, nil},
		"openssl s_client -showcerts": {slices.Concat([]byte(" 0 s:CN=one\n   i:CN=one\n"), a,
			[]byte(" 1 s:CN=two\n---\nServer certificate\n"), b), 2, nil},
		"mkbundle, with comments": {slices.Concat([]byte("# CN=one\n=====\n"), a, []byte("--- END of one ---\n"), b), 2, nil},
		"openssl pkcs12, with bag attributes": {slices.Concat(
			[]byte("Bag Attributes\n    friendlyName: one\nsubject=CN = one\n"), a), 1, nil},
		"a byte order mark before a comment": {slices.Concat([]byte("\ufeff# CN=one\n"), a), 1, nil},
		"one CA twice":                       {slices.Concat(a, a), 2, nil},
		"a negative serial number":           {slices.Concat(a, negativeSerial(two), c), 2, []string{"negative serial"}},
		"only the last one can be used":      {slices.Concat(negativeSerial(one), negativeSerial(two), c), 1, []string{"line 1", "line"}},
		"openssl x509 -trustout":             {slices.Concat(pemBlock("TRUSTED CERTIFICATE", two.Certificate.Raw), a), 1, []string{"TRUSTED"}},
		"a CRL":                              {slices.Concat(a, pemBlock("X509 CRL", []byte{0x30, 0}), b), 2, []string{"X509 CRL"}},
		"a key":                              {slices.Concat(leaf.KeyPEM, a), 1, []string{"private key"}},
		"EC PARAMETERS":                      {slices.Concat(pemBlock("EC PARAMETERS", []byte{6, 0}), a), 1, []string{"EC PARAMETERS"}},
		"a request":                          {slices.Concat(a, pemBlock("CERTIFICATE REQUEST", []byte{0x30, 0})), 1, []string{"REQUEST"}},
		"the label of Netscape":              {slices.Concat(a, pemBlock("X509 CERTIFICATE", two.Certificate.Raw)), 1, []string{"X509 CERTIFICATE"}},
		"PKCS #7":                            {slices.Concat(a, pemBlock("PKCS7", []byte{0x30, 0})), 1, []string{"openssl pkcs7"}},
		"no DER":                             {slices.Concat(a, pemBlock("CERTIFICATE", []byte{0, 0, 0})), 1, []string{"malformed"}},
		"an empty block":                     {slices.Concat(a, pemBlock("CERTIFICATE", nil)), 1, []string{"line"}},
		"a block with headers": {slices.Concat(a, pem.EncodeToMemory(&pem.Block{
			Type: "CERTIFICATE", Headers: map[string]string{"X": "y"}, Bytes: two.Certificate.Raw,
		})), 1, []string{"headers"}},
		"bytes behind the certificate": {
			slices.Concat(a, pemBlock("CERTIFICATE", append(bytes.Clone(two.Certificate.Raw), 0))), 1,
			[]string{"trailing"},
		},
	} {
		got, err := keys.ParseBundle(tc.text)
		if err != nil || len(got.Certificates) != tc.count || len(got.Skipped) != len(tc.skipped) {
			t.Errorf("%s: %d certificates, skipped %q, %v, want %d and %d", name, len(got.Certificates), got.Skipped, err,
				tc.count, len(tc.skipped))
			continue
		}

		for i, want := range tc.skipped {
			if !strings.Contains(got.Skipped[i], want) || !strings.Contains(got.Skipped[i], "line ") {
				t.Errorf("%s: notice %q, want %q and the line", name, got.Skipped[i], want)
			}
		}

		again, err := keys.ParseBundle(got.PEM())
		if err != nil || len(again.Certificates) != tc.count || len(again.Skipped) > 0 {
			t.Errorf("%s: its PEM is read as %v, %v", name, again, err)
		}
	}
}

// A block that one reader takes and another passes over is refused with its place.
func TestIncompleteBundles(t *testing.T) {
	t.Parallel()

	one := must(testpki.NewCA("one", testpki.Options{}))
	two := must(testpki.NewCA("two", testpki.Options{}))
	a := one.PEM
	b := two.PEM
	indent := func(text []byte) []byte { return eachLine(text, func(l string) string { return "  " + l }) }
	dashes := func(text []byte, dash string) []byte {
		return bytes.ReplaceAll(text, []byte("-----"), []byte(dash))
	}

	second := fmt.Sprintf("line %d", bytes.Count(a, []byte("\n"))+1)

	for name, tc := range map[string]struct {
		text []byte
		says []string
	}{
		"cut in the second":          {slices.Concat(a, b[:len(b)/2]), []string{second, "END line", "cut off"}},
		"cut in the mark":            {slices.Concat(a, b[:len(b)-4]), []string{"END"}},
		"cut at the front":           {slices.Concat(a[40:], b), []string{"no BEGIN line"}},
		"first one is cut":           {slices.Concat(a[:100], []byte("\n"), b), []string{"line 1 has no END line"}},
		"no line end between blocks": {glued(a, b), []string{"a line end is missing"}},
		"indented":                   {slices.Concat(a, indent(b)), []string{second, "indented"}},
		"quoted by mail":             {slices.Concat(a, eachLine(b, func(l string) string { return "> " + l })), []string{second, "alone"}},
		"a byte order mark":          {slices.Concat([]byte("\ufeff"), a, b), []string{"line 1:", "byte order mark"}},
		"two marked files, joined":   {slices.Concat(a, []byte("\ufeff"), b), []string{second, "byte order mark"}},
		"a line is missing":          {slices.Concat(a, without(b, 4)), []string{second, "missing"}},
		"a letter is missing":        {slices.Concat(a, bytes.Replace(b, []byte("MII"), []byte("MI"), 1)), []string{"Base64"}},
		"dots for the middle":        {slices.Concat(a, []byte("-----BEGIN CERTIFICATE-----\nMIIB...\n-----END CERTIFICATE-----\n")), []string{second, "Base64"}},
		"another END":                {slices.Concat(a, bytes.Replace(b, []byte("END CERTIFICATE"), []byte("END X509 CRL"), 1)), []string{"END line of", second[5:]}},
		"dashes of a word processor": {slices.Concat(a, dashes(b, "–––––")), []string{second, "hyphens"}},
		"four dashes":                {slices.Concat(a, dashes(b, "----")), []string{second, "hyphens"}},
		`literal \n (JSON, Vault)`:   {bytes.ReplaceAll(slices.Concat(a, b), []byte("\n"), []byte(`\n`)), []string{"line 1:", `\n`}},
		"spaces for line ends":       {bytes.ReplaceAll(a, []byte("\n"), []byte(" ")), []string{"one line"}},
		"CR for line ends":           {bytes.ReplaceAll(slices.Concat(a, b), []byte("\n"), []byte("\r")), []string{"CR"}},
		"UTF-16":                     {utf16Text(a), []string{"UTF-16"}},
		"DER":                        {one.Certificate.Raw, []string{"DER"}},
		"Base64 of PEM":              {[]byte(base64.StdEncoding.EncodeToString(a)), []string{"Base64 of PEM"}},
		"Base64 without marks":       {[]byte(base64.StdEncoding.EncodeToString(one.Certificate.Raw)), []string{"BEGIN"}},
		"a Java key store":           {[]byte("\xfe\xed\xfe\xed\x00\x00\x00\x02"), []string{"keytool"}},
		"no CA":                      {pemBlock("X509 CRL", []byte{0x30, 0}), []string{"no certificate", "X509 CRL"}},
		"no CA that can be used":     {negativeSerial(one), []string{"no certificate", "negative serial"}},
		"text":                       {[]byte("ca"), []string{"no PEM block"}},
	} {
		got, err := keys.ParseBundle(tc.text)
		if err == nil || keys.ProblemOf(err) != "malformed" {
			t.Errorf("%s: %d certificates, skipped %q, %v, want it malformed", name, len(got.Certificates), got.Skipped, err)
			continue
		}

		for _, want := range tc.says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want it to say %q", name, err, want)
			}
		}
	}

	if _, err := keys.ParseBundle([]byte("\n \n")); keys.ProblemOf(err) != "empty" {
		t.Errorf("blank: %v, want it empty", err)
	}
}

// Key files of other tools: the blocks are chosen as crypto/tls chooses them.
func TestPairsOfOtherTools(t *testing.T) {
	t.Parallel()

	ca := must(testpki.NewCA("ca", testpki.Options{}))
	intermediate := must(ca.Intermediate("intermediate", testpki.Options{}))
	leaf := must(intermediate.Client(runtime1, testpki.Options{}))
	other := must(ca.Client("other", testpki.Options{}))
	cert := leaf.CertPEM
	key := leaf.KeyPEM
	first, rest := pem.Decode(cert)
	top := pem.EncodeToMemory(first)
	parameters := pemBlock("EC PARAMETERS", []byte{6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7})
	decoded, _ := pem.Decode(key)
	encrypted := pem.EncodeToMemory(&pem.Block{
		Type: "RSA PRIVATE KEY", Headers: map[string]string{"Proc-Type": "4,ENCRYPTED"}, Bytes: decoded.Bytes,
	})

	odd := must(testpki.NewCA("odd", testpki.Options{}))

	for name, tc := range map[string]struct {
		cert, key     []byte
		problem, says string
		skipped       int
	}{
		"chain and key":                      {cert, key, "", "", 0},
		"the root behind the chain":          {slices.Concat(cert, ca.PEM), key, "", "", 0},
		"EC PARAMETERS before the key":       {cert, slices.Concat(parameters, key), "", "", 1},
		"all in one file (HAProxy)":          {slices.Concat(cert, key), slices.Concat(cert, key), "", "", 3},
		"two keys, the first counts":         {cert, slices.Concat(key, other.KeyPEM), "", "", 1},
		"a foreign certificate in the chain": {slices.Concat(cert, negativeSerial(odd)), key, "", "", 1},
		"two keys, the second is its own":    {cert, slices.Concat(other.KeyPEM, key), "mismatch", "private key", 0},
		"key of another behind parameters":   {cert, slices.Concat(parameters, other.KeyPEM), "mismatch", "", 0},
		"leaf last":                          {slices.Concat(rest, top), key, "mismatch", "number 2", 0},
		"root first":                         {slices.Concat(ca.PEM, cert), key, "mismatch", "leaf first", 0},
		"an unreadable leaf":                 {slices.Concat(negativeSerial(odd), cert), key, "malformed", "line 1", 0},
		"chain is cut":                       {cert[:len(cert)-30], key, "malformed", "END", 0},
		"key is cut":                         {cert, key[:len(key)-30], "malformed", "END", 0},
		"glued chain":                        {glued(top, rest), key, "malformed", "line end", 0},
		"encrypted, PKCS #8":                 {cert, pemBlock("ENCRYPTED PRIVATE KEY", decoded.Bytes), "malformed", "encrypted", 0},
		"encrypted, PKCS #1":                 {cert, encrypted, "malformed", "encrypted", 0},
		"of OpenSSH":                         {cert, pemBlock("OPENSSH PRIVATE KEY", []byte("openssh-key-v1")), "malformed", "OpenSSH", 0},
		"parameters alone":                   {cert, parameters, "malformed", "EC PARAMETERS", 0},
		"no key in it":                       {cert, pemBlock("PRIVATE KEY", []byte{0, 0, 0}), "malformed", "PKCS #8", 0},
		"no certificate":                     {key, key, "malformed", "no certificate", 0},
	} {
		_, err := keys.ParsePair(tc.cert, tc.key)
		if tc.problem == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if tc.problem != "" && (err == nil || string(keys.ProblemOf(err)) != tc.problem || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: %v, want %s with %q", name, err, tc.problem, tc.says)
		}

		material, sameErr := keys.NewMaterial(nil, tc.cert, tc.key)
		if (sameErr == nil) != (err == nil) {
			t.Errorf("%s: ParsePair %v, NewMaterial %v", name, err, sameErr)
		}
		if sameErr == nil && len(material.Skipped) != tc.skipped {
			t.Errorf("%s: skipped %q, want %d", name, material.Skipped, tc.skipped)
		}
	}
}

// Every text has one reading: what the parser takes, the standard library takes, block for block.
func FuzzParseBundle(f *testing.F) {
	one := must(testpki.NewCA("one", testpki.Options{}))
	two := must(testpki.NewCA("two", testpki.Options{}))
	leaf := must(one.Client(runtime1, testpki.Options{}))
	for _, seed := range [][]byte{
		one.PEM, testpki.Bundle(one, two), glued(one.PEM, two.PEM), one.PEM[:200], leaf.KeyPEM, negativeSerial(one),
		slices.Concat([]byte("\ufeff"), one.PEM), bytes.ReplaceAll(one.PEM, []byte("\n"), []byte("\r\n")),
		slices.Concat(one.PEM, pemBlock("X509 CRL", []byte{0x30, 0}), two.PEM),
		[]byte("-----BEGIN A-----\nx: y\n\nAAAA\n-----END A-----\n-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----"),
	} {
		f.Add(seed)
	}

	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := keys.ParseBundle(text)
		if (err == nil) != (len(got.Certificates) > 0) {
			t.Fatalf("%d certificates and %v", len(got.Certificates), err)
		}

		if err != nil {
			return
		}

		total := 0
		pool := x509.NewCertPool()
		for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
			total++
		}

		pool.AppendCertsFromPEM(text)
		ours := x509.NewCertPool()

		for _, certificate := range got.Certificates {
			ours.AddCert(certificate)
		}

		if total != len(got.Certificates)+len(got.Skipped) || !pool.Equal(ours) {
			t.Errorf("standard library finds %d blocks, want %d certificates and %q", total, len(got.Certificates), got.Skipped)
		}
	})
}
