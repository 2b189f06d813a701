package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/runtime-watcher/runtime-watcher/internal/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An address of a proxy has one form with its port, and any other address is refused.
func TestParse(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"http://proxy":              "http://proxy:3128",
		"http://proxy/":             "http://proxy:3128",
		"http://proxy:80":           "http://proxy:80",
		"http://[fd00::1]":          "http://[fd00::1]:3128",
		"http://[fd00::1]:8080":     "http://[fd00::1]:8080",
		"http://u:p@proxy:1":        "http://u:p@proxy:1",
		"":                          "",
		"proxy:3128":                "",
		"https://proxy:3128":        "",
		"socks5://proxy:1080":       "",
		"http://":                   "",
		"http://proxy:":             "",
		"http://proxy:0":            "",
		"http://proxy:65536":        "",
		"http://proxy:a":            "",
		"http://proxy/path":         "",
		"http://proxy?query":        "",
		"http://proxy#fragment":     "",
		"http://user:secret@:3128/": "",
		"http://u:sec ret@pro xy":   "",
	} {
		got, err := proxy.Parse(address)
		switch {
		case want == "" && err == nil:
			t.Errorf("%q is %v, want an error", address, got)
		case want == "" && (strings.Contains(err.Error(), "sec") || !strings.Contains(err.Error(), "http://host:port")):
			t.Errorf("%q: %v, want no password, and what is wanted", address, err)
		case want != "" && (err != nil || got.String() != want):
			t.Errorf("%q is %v (%v), want %s", address, got, err, want)
		}
	}
}

// The rules for HTTPS_PROXY are those of other programs.
func TestParseEnvironment(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"http://proxy": "http://proxy:80", "proxy": "http://proxy:80", "proxy:3128": "http://proxy:3128",
		"[fd00::1]": "http://[fd00::1]:80", "http://u:p@proxy/": "http://u:p@proxy:80", "": "", "https://proxy:1": "", "socks5://proxy:1": "",
		"http://pro xy:1": "", "u:sec ret@proxy": "",
	} {
		got, err := proxy.ParseEnvironment(value)
		if (err != nil) != (want == "") || err == nil && got.String() != want || err != nil && strings.Contains(err.Error(), "sec") {
			t.Errorf("%q is %v (%v), want %q", value, got, err, want)
		}
	}
}

const patience = 30 * time.Second

// fake answers each connection in a way of its own, and notes the requests.
type fake struct {
	net.Listener

	mu       sync.Mutex
	requests []*http.Request
	serving  sync.WaitGroup
}

func newFake(t *testing.T, answer func(conn net.Conn, request *http.Request)) *fake {
	t.Helper()

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	f := &fake{Listener: l}
	f.serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}

			f.serving.Go(func() {
				defer conn.Close()

				request, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}

				f.mu.Lock()
				f.requests = append(f.requests, request)
				f.mu.Unlock()
				answer(conn, request)
			})
		}
	})

	t.Cleanup(func() {
		_ = l.Close()
		f.serving.Wait()
	})
	return f
}

func (f *fake) last() *http.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests[len(f.requests)-1]
}

func says(text string) func(net.Conn, *http.Request) {
	return func(conn net.Conn, _ *http.Request) { _, _ = io.WriteString(conn, text) }
}

func (f *fake) dialer(t *testing.T, opts proxy.Options) *proxy.Dialer {
	t.Helper()

	if opts.Address == "" {
		opts.Address = "http://" + f.Addr().String()
	}

	d, err := proxy.New(opts)
	if err != nil {
		t.Fatal(err)
	}

	return d
}

// The bytes behind the answer belong to the other end: a NATS server speaks first.
func TestTunnel(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"at the same time": "HTTP/1.1 200 Connection established\r\n\r\nINFO first\n",
		"HTTP/1.0":         "HTTP/1.0 200 OK\r\nProxy-agent: tinyproxy\r\n\r\nINFO first\n",
		"other 2xx":        "HTTP/1.1 204 No Content\r\n\r\nINFO first\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFake(t, func(conn net.Conn, _ *http.Request) {
				_, _ = io.WriteString(conn, answer)
				_, _ = io.Copy(conn, conn) // It ends with the connection.
			})
			d := f.dialer(t, proxy.Options{})
			conn, err := d.DialContext(t.Context(), "tcp", "control-plane.example.com:443")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()

			if got := f.last(); got.Method != http.MethodConnect || got.Host != "control-plane.example.com:443" ||
				got.Header.Get("Proxy-Authorization") != "" {
				t.Errorf("request %s %s %v", got.Method, got.Host, got.Header)
			}

			_, _ = io.WriteString(conn, "echo")
			text := make([]byte, len("INFO first\necho"))
			if _, err := io.ReadFull(conn, text); err != nil || string(text) != "INFO first\necho" {
				t.Errorf("read %q, %v", text, err)
			}
			if d.Failure() != nil {
				t.Errorf("failure %v after a success", d.Failure())
			}
		})
	}
}

// The credentials are those of the file at that moment, before those in the address.
func TestCredentials(t *testing.T) {
	t.Parallel()

	f := newFake(t, says("HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"))
	path := filepath.Join(t.TempDir(), "credentials")
	inAddress := "http://user:pass%20word@" + f.Addr().String()
	for _, test := range []struct {
		file, address, want, wrong string
	}{
		{address: inAddress, want: "Basic dXNlcjpwYXNzIHdvcmQ="},
		{file: "user:one", want: "Basic dXNlcjpvbmU="},
		{file: "user:two\n", address: inAddress, want: "Basic dXNlcjp0d28="},
		{file: "user:a:b\r\n", want: "Basic dXNlcjphOmI="},
		{file: "user:", want: "Basic dXNlcjo="},
		{file: "secret", wrong: "want one line, user:password"},
		{file: ":secret", wrong: "want one line, user:password"},
		{file: "user:secret\nInjected: header", wrong: "want one line, user:password"},
		{file: strings.Repeat("secret:", 1000), wrong: "want one line, user:password"},
	} {
		opts := proxy.Options{Address: test.address}
		if test.file != "" {
			opts.Credentials = path
			if err := os.WriteFile(path, []byte(test.file), 0o600); err != nil {
				t.Fatal(err)
			}
		}

		_, err := f.dialer(t, opts).DialContext(t.Context(), "tcp", "a:443")
		failed, ok := errors.AsType[*proxy.Error](err)

		switch {
		case !ok, failed.Reason() != proxy.ReasonUnauthorized, strings.Contains(err.Error(), "secret"):
			t.Errorf("%q: %v, want an error of the proxy, without the content", test.file, err)
		case test.wrong != "" && !strings.Contains(err.Error(), test.wrong):
			t.Errorf("%q: %v, want %q", test.file, err, test.wrong)
		case test.wrong == "" && failed.Status != 407:
			t.Errorf("%q: %v (%s), want 407", test.file, err, failed.Reason())
		case test.wrong == "" && f.last().Header.Get("Proxy-Authorization") != test.want:
			t.Errorf("%q: %q, want %q", test.file, f.last().Header.Get("Proxy-Authorization"), test.want)
		}
	}

	missing := f.dialer(t, proxy.Options{Credentials: path + "-missing"})
	if _, err := missing.DialContext(t.Context(), "tcp", "a:443"); err == nil || missing.Failure() == nil {
		t.Error("no error without the file of the credentials")
	}
}

// A proxy that answers otherwise, or not at all, is named, and its connection is closed.
func TestFailures(t *testing.T) {
	t.Parallel()

	long := "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", 1<<20) + "\r\n\r\n"
	for text, want := range map[string]string{
		"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno\n": proxy.ReasonRefused,
		"HTTP/1.1 401 No\r\n\r\n":                                 proxy.ReasonUnauthorized,
		"HTTP/1.1 502 Bad Gateway\r\n\r\n":                        proxy.ReasonUpstream,
		"HTTP/1.0 500 Unable to connect\r\n\r\n":                  proxy.ReasonUpstream,
		"HTTP/1.1 301 Moved\r\nLocation: /\r\n\r\n":               proxy.ReasonRefused,
		"SSH-2.0-OpenSSH\r\n":                                     proxy.ReasonUnreachable,
		"":                                                        proxy.ReasonUnreachable,
		long:                                                      proxy.ReasonUnreachable,
	} {
		f := newFake(t, says(text))
		d := f.dialer(t, proxy.Options{})
		_, err := d.DialContext(t.Context(), "tcp", "a:443")
		failed, ok := errors.AsType[*proxy.Error](err)
		if !ok || failed.Reason() != want || !strings.Contains(err.Error(), f.Addr().String()) || d.Failure() == nil {
			t.Errorf("%.40q: %v, want %s with the address of the proxy", text, err, want)
		}
	}

	closed := newFake(t, says(""))
	d := closed.dialer(t, proxy.Options{})
	_ = closed.Close()
	if _, err := d.DialContext(t.Context(), "tcp", "a:443"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a closed port: %v", err)
	}
}

// A proxy that accepts connections and does not answer is named after the timeout. Dials that begin
// then do not hang one by one.
func TestSilentProxy(t *testing.T) {
	t.Parallel()

	over := make(chan struct{}, 1)
	f := newFake(t, func(conn net.Conn, _ *http.Request) {
		_, _ = conn.Read(make([]byte, 1)) // Until the other end closes the connection.
		over <- struct{}{}
	})

	for name, test := range map[string]struct{ whole, one time.Duration }{
		"by its own":     {patience, 50 * time.Millisecond},
		"by the context": {50 * time.Millisecond, patience},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), test.whole)
		d := f.dialer(t, proxy.Options{Timeout: test.one})
		_, err := d.DialContext(ctx, "tcp", "a:443")
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer in time") {
			t.Errorf("%s: %v, want no answer in plain words", name, err)
		}

		<-over
		_, again := d.DialContext(ctx, "tcp", "a:443")
		if !errors.Is(again, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want the same failure", name, again)
		}

		cancel()
	}
}

// A name that does not resolve is named.
func TestProxyWithoutAnAddress(t *testing.T) {
	t.Parallel()

	d, err := proxy.New(proxy.Options{Address: "http://proxy.invalid:3128"})
	if err != nil {
		t.Fatal(err)
	}

	_, err = d.DialContext(t.Context(), "tcp", "a:443")
	failed, ok := errors.AsType[*proxy.Error](err)
	if !ok || failed.Reason() != proxy.ReasonUnreachable || !strings.Contains(err.Error(), "proxy proxy.invalid:3128: ") {
		t.Errorf("%v, want an error with the name", err)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\n\r\nrest"))
	f.Add([]byte("HTTP/1.1 407 No\r\nProxy-Authenticate: Basic\r\n\r\n"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		here, there := net.Pipe()
		defer here.Close()

		done := make(chan struct{})
		go func() {
			defer close(done)
			defer there.Close()

			_, _ = http.ReadRequest(bufio.NewReader(there))
			_, _ = io.Copy(there, bytes.NewReader(answer))
		}()

		conn, err := proxy.Over(here).DialContext(t.Context(), "tcp", "a:443")
		if err == nil {
			_ = conn.Close()
		}

		_ = here.Close()
		<-done
		_ = fmt.Sprint(err)
	})
}
