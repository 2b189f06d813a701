package remote_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

func newClient(t *testing.T, url string, ca []byte) *http.Client {
	t.Helper()
	config := &rest.Config{
		Host: url, TLSClientConfig: rest.TLSClientConfig{CAData: ca}, Dial: (&net.Dialer{}).DialContext,
	}
	remote.Distrust(config)
	return must(rest.HTTPClientFor(config))
}

func get(ctx context.Context, t *testing.T, c *http.Client, url string) error {
	t.Helper()
	request := must(http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody))
	response, err := c.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// A program of a runtime answers nothing, and sends frames for ever.
func TestFramesWithoutEndEndTheConnection(t *testing.T) {
	ca := must(testpki.NewCA("ca", testpki.Options{}))
	leaf := must(ca.Server("127.0.0.1", testpki.Options{}))
	listener := must(tls.Listen("tcp", "127.0.0.1:0",
		&tls.Config{Certificates: []tls.Certificate{leaf.TLS}, NextProtos: []string{"h2"}}))
	sent := make(chan int, 1)
	go func() { sent <- sendPings(listener) }()
	url := "https://" + listener.Addr().String()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	before := processorTime()
	if err := get(ctx, t, newClient(t, url, ca.PEM), url); err == nil || ctx.Err() != nil {
		t.Errorf("got %v, want an error of the connection", err)
	}
	if took := processorTime() - before; took > 5*time.Second {
		t.Errorf("both ends took %v of processor time", took)
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
	const most = 16 << 20 // with the buffers of the kernel
	if n := <-sent; n < 1<<20 || n > most {
		t.Errorf("%d bytes were sent, want a flood and an end", n)
	}
}

// processorTime is a tenth with the race detector, which takes five to ten times as much.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	took := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	if info, _ := debug.ReadBuildInfo(); slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		took /= 10
	}
	return took
}

func sendPings(listener net.Listener) (sent int) {
	c, err := listener.Accept()
	if err != nil {
		return 0
	}
	defer func() { _ = c.Close() }()
	go func() { _, _ = io.Copy(io.Discard, c) }()
	settings := []byte{0, 0, 0, 4, 0, 0, 0, 0, 0}
	ping := append([]byte{0, 0, 8, 6, 0, 0, 0, 0, 0}, binary.BigEndian.AppendUint64(nil, 1)...)
	next := slices.Concat(settings, slices.Repeat(ping, 1000))
	for {
		n, err := c.Write(next)
		if sent += n; err != nil {
			return sent
		}
		next = next[len(next)-1000*len(ping):]
	}
}

// A client of HTTP/1.1 and of HTTP/2.
func TestHeadersAreBounded(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Large", strings.Repeat("a", 128<<10))
		}))
		server.EnableHTTP2 = http2
		server.StartTLS()
		ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
		if err := get(t.Context(), t, newClient(t, server.URL, ca), server.URL); err == nil {
			t.Errorf("HTTP/2 %t: a header of 128 KiB is read", http2)
		}
		server.Close()
	}
}

// Two reconciles with large answers leave no place for a third one until one of them ends.
func TestLargeAnswersOfAProcessAreBounded(t *testing.T) {
	large := strings.Repeat("a", 2<<20)
	synctest.Test(t, func(t *testing.T) {
		budgets := remote.NewBudgets()
		read := func() (end func(), err error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			ctx, end = budgets.Begin(ctx)
			return end, readAnswer(ctx, large)
		}
		first, err := read()
		second, secondErr := read()
		if err := errors.Join(err, secondErr); err != nil {
			t.Fatal(err)
		}
		third, err := read()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the third one to wait", err)
		}
		third()
		first()
		fourth, err := read()
		if err != nil {
			t.Error("after the end of the first one:", err)
		}
		fourth()
		second()
	})
}

func readAnswer(ctx context.Context, text string) error {
	config := &rest.Config{Host: "http://192.0.2.1", Dial: (&net.Dialer{}).DialContext}
	config.Wrap(func(http.RoundTripper) http.RoundTripper { return answers(text) })
	remote.Distrust(config)
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host, http.NoBody)
	if err != nil {
		return err
	}
	response, err := c.Do(request)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

type answers string

func (a answers) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(a)))}, nil
}

func TestManagersAreValidAndFew(t *testing.T) {
	names := []string{"b", "", "A", "b", "a/b", strings.Repeat("a", 64), "a"}
	if have, want := remote.Managers(slices.Values(names)), []core.Manager{"b", "a"}; !slices.Equal(have, want) {
		t.Errorf("got %q, want %q", have, want)
	}
	many := func(yield func(string) bool) {
		for n := range 1000 {
			if !yield(strconv.Itoa(n)) {
				return
			}
		}
	}
	if have := remote.Managers(many); len(have) != 100 {
		t.Errorf("%d managers, want 100", len(have))
	}
}

func TestTextsAreCut(t *testing.T) {
	if have := remote.Text(strings.Repeat("\u00e4", 4000)); len(have) > 4010 || !strings.HasSuffix(have, "\u00e4…") {
		t.Errorf("%d bytes", len(have))
	}
	cause := errors.New(strings.Repeat("a", 5000))
	if err := remote.Error(cause); len(err.Error()) > 4010 || !errors.Is(err, cause) {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
	if remote.Token(strings.Repeat("a", 65)) != "" || remote.Token("a") != "a" || remote.Error(nil) != nil {
		t.Error("short texts are changed, or long ones kept")
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
