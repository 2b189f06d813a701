package listener_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// BenchmarkServeHTTP measures an event in the listener itself, without the HTTP server.
func BenchmarkServeHTTP(b *testing.B) {
	ca := newAuthority(b, "ca")
	cert := ca.client(b, "runtime-a")
	sources := []struct {
		name  string
		peers listener.Peers
	}{
		{"connection", listener.FromTLS(ca.roots(), listener.PeerOptions{})},
		{"header", listener.FromXFCC(listener.InsecureAnyProxy(), ca.roots(), listener.PeerOptions{})},
	}

	for _, source := range sources {
		b.Run(source.name, func(b *testing.B) {
			l := newListener(b, source.peers, listener.InsecureAllowAll(), core.HandlerFunc(ignore), plenty())
			r := requestOf(ca, cert)
			body := strings.NewReader(bodyV2)
			r.Body = io.NopCloser(body)
			w := &discard{header: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				body.Reset(bodyV2)
				l.ServeHTTP(w, r)
			}

			if w.status != http.StatusOK {
				b.Fatalf("answer %d", w.status)
			}
		})
	}
}

// BenchmarkServer is an event over a real connection, with the client in the same process. Each
// goroutine waits for its answers, as a gateway does.
func BenchmarkServer(b *testing.B) {
	ca := newAuthority(b, "ca")
	cert := ca.client(b, "runtime-a")
	byHeader := listener.FromXFCC(listener.InsecureAnyProxy(), ca.roots(), listener.PeerOptions{})
	b.Run("header, HTTP/1.1", func(b *testing.B) {
		run := start(b, byHeader, listener.InsecureAllowAll(), core.HandlerFunc(ignore), plenty())
		benchmarkServer(b, run, newClient(b, nil, false), cert.header())
	})
	b.Run("header, HTTP/1.1, client that costs little", func(b *testing.B) {
		run := start(b, byHeader, listener.InsecureAllowAll(), core.HandlerFunc(ignore), plenty())
		benchmarkRaw(b, run, cert.header())
	})
}

// plenty returns options with shares that a benchmark does not exceed.
func plenty() listener.Options {
	return listener.Options{RuntimeRate: 1e9, RuntimeBurst: 1e9, RuntimeInFlight: 1e6}
}

func benchmarkServer(b *testing.B, run *running, client *http.Client, header string) {
	b.Helper()

	if transport, ok := client.Transport.(*http.Transport); ok {
		transport.MaxIdleConnsPerHost = 64
	}
	b.ReportAllocs()
	before := processorTime()
	b.SetParallelism(16)

	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			headers := http.Header{headerXFCC: {header}}
			if response, text := mustSend(b, client, run.url+"/v2/lifecycle/event", bodyV2, headers); response.StatusCode != http.StatusOK {
				b.Errorf("answer %d %s", response.StatusCode, text)
			}
		}
	})

	reportEvents(b, before)
}

// reportEvents adds the processor time of both ends for an event: it depends less than the rate on
// the other load of the machine.
func reportEvents(b *testing.B, before time.Duration) {
	b.Helper()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64((processorTime()-before).Microseconds())/float64(b.N), "cpu-µs/event")
}

func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// benchmarkRaw sends the same bytes again and again, so that it measures the server more
// than the client.
func benchmarkRaw(b *testing.B, run *running, header string) {
	b.Helper()

	request := []byte("POST /v2/lifecycle/event HTTP/1.1\r\nHost: operator\r\nContent-Type: application/json\r\n" +
		headerXFCC + ": " + header + "\r\nContent-Length: " + strconv.Itoa(len(bodyV2)) + "\r\n\r\n" + bodyV2)
	b.ReportAllocs()
	before := processorTime()
	b.SetParallelism(16)

	b.RunParallel(func(pb *testing.PB) {
		conn, err := net.Dial("tcp", run.address())
		if err != nil {
			b.Error(err)
			return
		}

		defer conn.Close()
		reader := bufio.NewReader(conn)
		for pb.Next() {
			if err := exchangeRaw(conn, reader, request); err != nil {
				b.Error(err)
				return
			}
		}
	})

	reportEvents(b, before)
}

// exchangeRaw sends a request and reads an answer without body.
func exchangeRaw(conn net.Conn, reader *bufio.Reader, request []byte) error {
	if _, err := conn.Write(request); err != nil {
		return err
	}
	status, err := reader.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(status, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("answer %s", status)
	}

	for line := status; len(line) > len("\r\n"); {
		if line, err = reader.ReadSlice('\n'); err != nil {
			return err
		}
	}

	return nil
}

func ignore(context.Context, core.Delivery) error { return nil }

// discard is a response that costs nothing.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header { return d.header }

func (d *discard) Write(text []byte) (int, error) { return len(text), nil }

func (d *discard) WriteHeader(status int) { d.status = status }
