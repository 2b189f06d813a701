package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// An address in use and negative options are errors of Bind, before anything is served.
func TestBindReturnsErrors(t *testing.T) {
	t.Parallel()

	r := run(t, noContent, Options{})
	if _, err := Bind(t.Context(), r.Addr().String(), noContent, Options{}); err == nil {
		t.Error("an address was bound twice")
	}

	_, err := Bind(t.Context(), "127.0.0.1:0", noContent, Options{MaxConnections: -1, IdleTimeout: -1})
	if err == nil || !strings.Contains(err.Error(), "MaxConnections") || !strings.Contains(err.Error(), "IdleTimeout") {
		t.Errorf("error %v, want one that names both negative options", err)
	}
}

func TestCloseReleasesTheAddress(t *testing.T) {
	t.Parallel()

	s := must(Bind(t.Context(), "127.0.0.1:0", noContent, Options{}))(t)
	check(t, s.Close())
	if err := s.Serve(t.Context()); !errors.Is(err, errEnded) {
		t.Errorf("a closed server returned %v, want %v", err, errEnded)
	}
}

// A program may get its signal before the server accepts. The race detector judges.
func TestServeAfterTheEnd(t *testing.T) {
	t.Parallel()

	config := &tls.Config{Certificates: []tls.Certificate{newAuthority(t).issue(t)}}
	ended, cancel := context.WithCancel(t.Context())
	cancel()

	for range 200 {
		for _, opts := range []Options{{}, {TLS: config}} {
			s := must(Bind(t.Context(), "127.0.0.1:0", noContent, opts))(t)
			check(t, s.Serve(ended))
		}
	}

	if config.MinVersion != 0 || config.NextProtos != nil {
		t.Error("the configuration of the caller was changed")
	}
}

// A client gets HTTP/2, unless the option disables it.
func TestProtocols(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)

	for http1Only, want := range map[bool]int{false: 2, true: 1} {
		t.Run(fmt.Sprint("HTTP1Only ", http1Only), func(t *testing.T) {
			t.Parallel()

			versions := make(chan int, 1)
			handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { versions <- r.ProtoMajor })
			config := &tls.Config{Certificates: []tls.Certificate{ca.issue(t)}}
			r := run(t, handler, Options{TLS: config, HTTP1Only: http1Only})
			if _, err := r.get(t, newClient(t, &tls.Config{RootCAs: ca.Pool()})); err != nil {
				t.Fatal(err)
			}
			if have := <-versions; have != want {
				t.Errorf("HTTP/%d, want HTTP/%d", have, want)
			}
		})
	}
}

// At the end, requests in flight are waited for, then cancelled, then cut off.
func TestEnd(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		timeout time.Duration
		handler func(ctx context.Context, free <-chan struct{})
		status  int
		err     error
	}{
		{"waits", time.Minute, func(_ context.Context, free <-chan struct{}) { <-free }, http.StatusOK, nil},
		{
			"cancels", time.Millisecond,
			func(ctx context.Context, _ <-chan struct{}) { <-ctx.Done() },
			http.StatusOK, nil,
		},
		{"cuts off", time.Millisecond, func(_ context.Context, free <-chan struct{}) { <-free }, 0, errAborted},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			inside := make(chan struct{})
			free := make(chan struct{})
			status := make(chan int, 1)
			handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				close(inside)
				test.handler(r.Context(), free)
			})
			r := run(t, handler, Options{ShutdownTimeout: test.timeout})
			go func() {
				answer, _ := r.get(t, newClient(t, nil))
				status <- answer
			}()
			<-inside
			r.cancel()

			if test.timeout == time.Minute {
				close(free)
			}
			if err := <-r.ended; !errors.Is(err, test.err) {
				t.Errorf("Serve returned %v, want %v", err, test.err)
			}
			if have := <-status; have != test.status {
				t.Errorf("the request in flight was answered %d, want %d", have, test.status)
			}
			if test.err != nil {
				close(free)
			}
		})
	}
}

// deaf is a connection with a client that stops to read for longer than any deadline.
type deaf struct{ net.Conn }

func (deaf) SetDeadline(time.Time) error      { return nil }
func (deaf) SetWriteDeadline(time.Time) error { return nil }

// TLS writes before it closes a connection. The end does not wait for that longer than for
// requests.
func TestEndWithADeafClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ca := newAuthority(t)
		listener := newNetwork()
		r := run(t, noContent, Options{Listener: listener, TLS: &tls.Config{Certificates: []tls.Certificate{ca.issue(t)}}})
		near, far := net.Pipe()
		listener.accepted <- deaf{far}
		exchangeHTTP1(t, tls.Client(near, &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1"}))
		synctest.Wait() // The connection is idle.
		check(t, r.stop())
	})
}

func TestPanicIsLogged(t *testing.T) {
	t.Parallel()

	var lines log
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			panic("broken")
		}
	})

	r := run(t, handler, Options{Logger: newLogger(&lines)})
	if _, err := r.get(t, newClient(t, nil)); err == nil {
		t.Error("a panic was answered")
	}

	check(t, r.stop())
	have := lines.lines()
	if len(have) != 1 || !strings.Contains(have[0], "level=ERROR") || !strings.Contains(have[0], "error=broken") {
		t.Errorf("log %v, want one line of the panic", have)
	}
}

// An origin is an IPv4 address or an IPv6 network. Another text is its own origin.
func TestOrigin(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"192.0.2.7:443":               "192.0.2.7",
		"[::ffff:192.0.2.7]:443":      "192.0.2.7",
		"[2001:db8:1:2:3::4]:443":     "2001:db8:1:2::/64",
		"[2001:db8:1:2:ffff::1]:8443": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:443":          "fe80::/64",
		"@":                           "@",
		"/run/agent.sock":             "/run/agent.sock",
		"localhost:443":               "localhost:443",
	} {
		if got := Origin(remote); got != want {
			t.Errorf("origin of %s is %s, want %s", remote, got, want)
		}
	}
}
