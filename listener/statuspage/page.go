package statuspage

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strings"
)

// fleetPage is the page for browsers: one file, without foreign assets.
//
//go:embed page.html
var fleetPage string

// newFleetPage returns a handler that answers with the page. The policy allows the script and the
// style of the page, and requests to its own origin. Trusted Types keep the page from parsing text
// as HTML (CSP Level 3; W3C Trusted Types, section 4).
func newFleetPage() http.Handler {
	policy := strings.Join([]string{
		"default-src 'none'",
		"script-src " + sourceHash(fleetPage, "script"),
		"style-src " + sourceHash(fleetPage, "style"),
		"connect-src 'self'", "img-src data:",
		"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
		"require-trusted-types-for 'script'", "trusted-types 'none'",
	}, "; ")
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", policy)
		_, _ = w.Write([]byte(fleetPage)) // It fails when the reader is gone.
	})
}

// sourceHash returns the hash of the only element with that name, as a source of a policy.
func sourceHash(page, name string) string {
	_, rest, _ := strings.Cut(page, "<"+name+">")
	content, _, _ := strings.Cut(rest, "</"+name+">")
	sum := sha256.Sum256([]byte(content))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// wantsPage reports whether a browser asks for a document. Programs that accept anything get JSON.
func wantsPage(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/html")
}
