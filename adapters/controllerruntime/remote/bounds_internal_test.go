package remote

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

func boundClient(t *testing.T, url string, ca []byte) *http.Client {
	t.Helper()
	config := &rest.Config{
		Host: url, TLSClientConfig: rest.TLSClientConfig{CAData: ca}, Dial: (&net.Dialer{}).DialContext,
	}
	bound(config)
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
	if err := get(ctx, t, boundClient(t, url, ca.PEM), url); err == nil || ctx.Err() != nil {
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
		if err := get(t.Context(), t, boundClient(t, server.URL, ca), server.URL); err == nil {
			t.Errorf("HTTP/2 %t: a header of 128 KiB is read", http2)
		}

		server.Close()
	}
}

// A client of metadata asks for Protocol Buffers first, and must get JSON.
func TestOnlyJSONIsAccepted(t *testing.T) {
	const metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	for have, want := range map[string]string{
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," + metadata + ",application/json": metadata +
			",application/json",
		"application/json": "application/json",
		"text/plain":       "text/plain",
		"":                 "",
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://runtime.invalid", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}

		request.Header.Set("Accept", have)
		if got := acceptJSON(request).Header.Get("Accept"); got != want {
			t.Errorf("Accept %q becomes %q, want %q", have, got, want)
		}
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
