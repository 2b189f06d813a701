package statuspage

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

type authenticated struct{}

// Authenticated marks each request as authenticated, for [FleetHandler] and [InstallationsHandler].
// Put it behind a filter that refuses all other requests.
func Authenticated(next http.Handler) http.Handler {
	refuseNil("next", next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(challengerKey{}).(*challenger); ok {
			c.passed = true
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), authenticated{}, true)))
	})
}

// RequireToken passes requests with the bearer token (RFC 6750, section 2.1) to next, marked as
// [Authenticated]. A browser asks for a password: enter the token. The function token is called for
// each request, so the token may change. An empty token refuses all requests. Serve the handler
// with TLS.
func RequireToken(token func() string, next http.Handler) http.Handler {
	refuseNil("token", token)
	marked := Authenticated(next)
	return BrowserLogin(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !hasToken(r, token()) {
			http.Error(w, "the token is missing or wrong", http.StatusUnauthorized)
			return
		}
		marked.ServeHTTP(w, r)
	}))
}

// hasToken compares in constant time.
func hasToken(r *http.Request, token string) bool {
	shown, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	a := sha256.Sum256([]byte(shown))
	b := sha256.Sum256([]byte(token))
	return token != "" && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// BrowserLogin lets a browser log in at a filter that checks bearer tokens. It passes the password
// of HTTP Basic authentication (RFC 7617) on as the bearer token and ignores the user name. It adds
// the challenge of that scheme to answers with 401.
//
// The filter of controller-runtime answers a wrong token with 500. With [Authenticated] behind it,
// BrowserLogin turns that 500 into 401. Package controllerruntime puts both around its metrics
// server.
func BrowserLogin(filter http.Handler) http.Handler {
	refuseNil("filter", filter)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &challenger{ResponseWriter: w}
		_, password, ok := r.BasicAuth()
		r = r.Clone(context.WithValue(r.Context(), challengerKey{}, c))
		if ok {
			r.Header.Set("Authorization", "Bearer "+password)
		}
		filter.ServeHTTP(c, r)
	})
}

type challengerKey struct{}

// challenger adds the challenge of HTTP Basic to an answer with 401.
type challenger struct {
	http.ResponseWriter

	passed bool // set by Authenticated: the filter has let the request through
}

func (c *challenger) WriteHeader(status int) {
	if status == http.StatusInternalServerError && !c.passed {
		status = http.StatusUnauthorized
	}
	if status == http.StatusUnauthorized {
		c.Header().Set("WWW-Authenticate", `Basic realm="Runtime Watcher, the password is a token", charset="UTF-8"`)
	}
	c.ResponseWriter.WriteHeader(status)
}

// Unwrap is for [http.ResponseController].
func (c *challenger) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func refuseNil(name string, argument any) {
	if option.IsNil(argument) {
		panic("statuspage: " + name + " is nil")
	}
}
