package lab

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/url"
	"strings"
)

// ByGateway returns the header X-Forwarded-Client-Cert in which Envoy describes a runtime, its client.
func ByGateway(runtime *x509.Certificate) string {
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: runtime.Raw})
	escaped := strings.ReplaceAll(url.QueryEscape(string(cert)), "+", "%20")
	return fmt.Sprintf(`Hash=%x;Cert=%q;Subject=%q;URI=`, sha256.Sum256(runtime.Raw), escaped, runtime.Subject)
}

// BySidecar appends the element in which the Envoy of a sidecar describes the gateway, its client. A
// sidecar forwards no Cert.
func BySidecar(header, gateway string) string {
	return fmt.Sprintf(`%s,By=spiffe://cluster.local/ns/kcp-system/sa/operator;Hash=%x;Subject="";URI=%s`,
		header, sha256.Sum256([]byte(gateway)), gateway)
}
