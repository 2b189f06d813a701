package hardening

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// attack uses one connection until it is closed, or ctx ends. It is then made again.
type attack struct {
	name    string
	workers int
	pause   time.Duration // before it is made again
	do      func(ctx context.Context) error
	// endures means that the program does not have to end the connection.
	endures bool
}

// limits are those of a listener that is attacked. Its memory may grow by the kilobytes.
type limits struct {
	holding

	connections int
}

// withstands attacks the listener, and has friends use it meanwhile. Afterwards it has as many
// files and goroutines as before.
func (s *siege) withstands(t *testing.T, a attack, patient *http.Client, before holding, most limits) {
	t.Helper()
	fought, stop := a.start(t)
	defer stop()
	lab.Eventually(t, lab.Patience, "the attack is there",
		func() bool { return fought.attempts.Load() >= int64(min(a.workers, most.connections)) })
	answered, failed, held := s.use(t, patient)
	if !a.endures {
		lab.Eventually(t, lab.Patience, "the listener ends a connection of the attack", func() bool {
			held = held.with(s.holds())
			return fought.ended.Load() > 0
		})
	}
	t.Logf("%d connections tried, %d ended; %d requests, %d failed; at most %+v", fought.attempts.Load(), fought.ended.Load(), answered,
		failed, held)
	// Attackers, listener and friends share the processors here, so a deadline may pass.
	if failed > 2 {
		t.Errorf("%d of %d requests failed during the attack", failed, failed+answered)
	}
	if held.files > most.files || held.goroutines > most.goroutines || held.kilobytes > before.kilobytes+most.kilobytes {
		t.Errorf("it held %+v, want at most %+v with %d kB more", held, most.holding, before.kilobytes)
	}
	stop()
	lab.Eventually(t, lab.Patience, "the listener has as many files and goroutines as before", func() bool {
		now := s.holds()
		return now.goroutines > 0 && now.files <= before.files+10 && now.goroutines <= before.goroutines+20
	})
}

// use makes requests for a second, on the connection of a patient client and on new ones. A request
// has failed if it fails twice.
func (s *siege) use(t *testing.T, patient *http.Client) (answered, failed int, most holding) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := range 10 {
		<-tick.C
		fresh := s.friend()
		for _, client := range []*http.Client{patient, fresh} {
			name := fmt.Sprintf("during-%d", i)
			err := s.send(client, name)
			if err != nil { // As an agent does. A busy machine may miss a deadline of the listener.
				t.Logf("a request failed: %v", err)
				err = s.send(client, name)
			}
			if err != nil {
				t.Logf("its repetition failed: %v", err)
				failed++
			} else {
				answered++
			}
		}
		fresh.CloseIdleConnections()
		most = most.with(s.holds())
	}
	if answered == 0 {
		t.Fatal("no request was answered during the attack")
	}
	return answered, failed, most
}

// fight has the results of an attack so far.
type fight struct{ attempts, ended atomic.Int64 }

// start attacks until it is stopped, with a bound on the attempts.
func (a attack) start(t *testing.T) (fought *fight, stop func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	fought = &fight{}
	var all sync.WaitGroup
	for range a.workers {
		all.Go(func() {
			for ctx.Err() == nil && fought.attempts.Add(1) < 10_000 {
				// It fails when the program defends itself.
				if err := a.do(ctx); err != nil && ctx.Err() == nil {
					fought.ended.Add(1)
				}
				select {
				case <-time.After(a.pause): // It shares the processor with the program.
				case <-ctx.Done():
				}
			}
		})
	}
	return fought, func() {
		cancel()
		all.Wait()
	}
}

// holding has the resources of a program at one moment.
type holding struct{ files, kilobytes, goroutines int }

func (h holding) with(o holding) holding {
	return holding{max(h.files, o.files), max(h.kilobytes, o.kilobytes), max(h.goroutines, o.goroutines)}
}

func openFiles(pid int) int { return len(lab.Must(os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)))) }

// TestPortsUnderFlood opens more connections to each port of an agent than it takes. A client from
// elsewhere is served.
func TestPortsUnderFlood(t *testing.T) {
	s := newScene(t, nil)
	transport := &http.Transport{TLSClientConfig: clientOf(s.pki), DialContext: from(friends).DialContext}
	caller := &http.Client{Timeout: lab.Patience, Transport: transport}
	defer caller.CloseIdleConnections()
	const many, others = 500, 40 // Others are the other port, files, and connections that are about to close.
	for _, port := range []struct {
		name, address, begin string
		most                 int // connections
	}{
		{"metrics", s.metrics(), "GET /metrics HTTP/1.1\r\nX: ", 64},
		{"webhook", s.webhook(), "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 192},
	} {
		t.Run(port.name, func(t *testing.T) {
			for range many {
				conn := lab.Must(from(attackers).DialContext(t.Context(), "tcp", port.address))
				t.Cleanup(func() { conn.Close() })
				_, _ = io.WriteString(conn, port.begin) // Some are closed by now.
			}
			lab.NoError(t, lab.Ask(t.Context(), caller, "https://"+s.webhook()+"/validate/"+manager, lab.Review(port.name)))
			// On a busy machine, some time out before.
			least := float64(many-port.most) / 2
			label := fmt.Sprintf("server=%q", port.name)
			lab.Eventually(t, lab.Patience, "connections are dropped, and counted", func() bool {
				return s.agent.Metric("runtime_watcher_agent_connections_dropped_total", label) >= least
			})
			if n := openFiles(s.agent.Pid()); n > port.most+64+others {
				t.Errorf("%d open files", n)
			}
		})
	}
}

// inside matches internal details: source positions, file names and keys.
var inside = regexp.MustCompile(`goroutine|\.go:\d|runtime error|/tmp/|tls\.key|BEGIN |panic|github\.com`)

// tellNothing wants each handshake to fail with an alert.
func tellNothing(t *testing.T, address string, handshakes map[string]*tls.Config) {
	t.Helper()
	for name, config := range handshakes {
		conn, err := tlsFrom(t.Context(), attackers, address, config)
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
			conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "remote error: tls: ") || inside.MatchString(err.Error()) {
			t.Errorf("%s: %v, want an alert and nothing else", name, err)
		}
	}
}

// TestHandshakesTellNothing reads the alerts that a webhook which demands client certificates sends
// to strangers.
func TestHandshakesTellNothing(t *testing.T) {
	callers := lab.Must(testpki.NewCA("api-server-clients", testpki.Options{}))
	file := filepath.Join(t.TempDir(), "callers.crt")
	lab.NoError(t, os.WriteFile(file, callers.PEM, 0o600))
	s := newScene(t, map[string]string{"WEBHOOK_CLIENT_CA": file})
	old := clientOf(s.pki)
	second := clientOf(s.pki)
	old.MinVersion = tls.VersionTLS12
	old.MaxVersion = tls.VersionTLS12
	second.NextProtos = []string{"h2"}
	tellNothing(t, s.webhook(), map[string]*tls.Config{"no certificate": clientOf(s.pki), "TLS 1.2": old, "HTTP/2": second})
	// Plain HTTP gets an answer that names the mistake, and nothing else.
	conn := lab.Must(from(attackers).DialContext(t.Context(), "tcp", s.webhook()))
	defer conn.Close()
	lab.Must(io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	answer, _ := io.ReadAll(conn)
	lab.Same(t, "answer to plain HTTP", "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n", string(answer))
}

// speaker writes any HTTP/2 frames.
type speaker struct {
	*http2.Framer

	out    *bufio.Writer
	block  bytes.Buffer
	hpack  *hpack.Encoder
	stream uint32
}

// flood is an attack by frames over one connection: begin, and the step so many times, until the listener closes it.
type flood struct {
	settings    []http2.Setting
	begin, step func(*speaker) error
	times       int
	// deaf means that it does not read the answers, and stays that it leaves the connection open afterwards.
	deaf, stays bool
	// ends means that the listener has to end the connection.
	ends bool
}

// frames attacks as a known runtime, by HTTP/2.
func (s *siege) frames(name string, workers int, f flood) attack {
	const pause = 200 * time.Millisecond
	return attack{name, s.share(workers), pause, func(ctx context.Context) error {
		conn, err := tlsFrom(ctx, attackers, s.addr, s.client(s.loud, "h2"))
		if err != nil {
			return err
		}
		defer conn.Close()
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		defer stop()
		if tcp, ok := conn.NetConn().(*net.TCPConn); ok && f.deaf {
			_ = tcp.SetReadBuffer(4 << 10) // Else the system buffers megabytes.
		}
		if !f.deaf {
			heard := make(chan struct{})
			defer func() {
				conn.Close()
				<-heard
			}()
			go func() {
				defer close(heard)
				_, _ = io.Copy(io.Discard, conn) // It ends with the connection.
				conn.Close()
			}()
		}
		out := bufio.NewWriterSize(conn, 64<<10)
		speaker := &speaker{Framer: http2.NewFramer(out, nil), out: out, stream: 1}
		speaker.hpack = hpack.NewEncoder(&speaker.block)
		if _, err := out.WriteString(http2.ClientPreface); err != nil {
			return err
		}
		if err := errors.Join(speaker.WriteSettings(f.settings...), speaker.WriteSettingsAck(), out.Flush()); err != nil {
			return err
		}
		return speaker.flood(ctx, f)
	}, !f.ends}
}

// flood writes the frames.
func (s *speaker) flood(ctx context.Context, f flood) error {
	const batch = 50
	if f.begin != nil {
		if err := f.begin(s); err != nil {
			return err
		}
	}
	for i := 0; i < f.times && ctx.Err() == nil; i++ {
		if err := f.step(s); err != nil {
			return err
		}
		if i%batch == 0 {
			if err := s.out.Flush(); err != nil {
				return err
			}
		}
	}
	if f.stays {
		<-ctx.Done()
	}
	return s.out.Flush()
}

// request begins a request on a new stream and returns the stream.
func (s *speaker) request(method, path string, ends bool, more ...hpack.HeaderField) (uint32, error) {
	id := s.stream
	s.stream += 2
	return id, s.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, EndHeaders: true, EndStream: ends, BlockFragment: s.fields(method, path, more...),
	})
}

func (s *speaker) fields(method, path string, more ...hpack.HeaderField) []byte {
	s.block.Reset()
	for _, field := range append([]hpack.HeaderField{
		{Name: ":method", Value: method},
		{Name: ":path", Value: path},
		{Name: ":scheme", Value: "https"},
		{Name: ":authority", Value: "a"},
		{Name: "content-type", Value: "application/json"},
	}, more...) {
		_ = s.hpack.WriteField(field) // It writes into memory.
	}
	return s.block.Bytes()
}

const eventPath = "/v2/" + manager + "/event"

// frameAttacks are attacks by HTTP/2, of a runtime with a good certificate.
func (s *siege) frameAttacks() []attack {
	event := []byte(eventV2("loud"))
	begun := func(s *speaker) error { // A request that does not end.
		_, err := s.request("POST", eventPath, false)
		return err
	}
	return []attack{
		s.frames("more events than its share", 8, flood{times: 3000, step: func(s *speaker) error {
			id, err := s.request("POST", eventPath, false)
			return errors.Join(err, s.WriteData(id, true, event))
		}}),
		s.frames("thousands of streams that do not end", 8, flood{times: 3000, step: begun}),
		s.frames("rapid reset", 8, flood{times: 5000, step: func(s *speaker) error {
			id, err := s.request("POST", eventPath, false)
			return errors.Join(err, s.WriteRSTStream(id, http2.ErrCodeCancel))
		}}),
		s.frames("header lists of one byte for four thousand", 4, flood{times: 100, begin: func(s *speaker) error {
			_, err := s.request("GET", "/", true, hpack.HeaderField{Name: "x", Value: strings.Repeat("a", 3900)})
			return err
		}, step: func(s *speaker) error {
			s.stream += 2
			return s.WriteHeaders(http2.HeadersFrameParam{
				StreamID: s.stream, EndHeaders: true, EndStream: true,
				BlockFragment: bytes.Repeat([]byte{0xbe}, 16<<10-1), // Index 62 is the youngest entry of the table.
			})
		}}),
		s.frames("continuations without end", 4, flood{times: 5000, ends: true, begin: func(s *speaker) error {
			err := s.WriteHeaders(http2.HeadersFrameParam{StreamID: s.stream, BlockFragment: s.fields("GET", "/")})
			s.block.Reset()
			_ = s.hpack.WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("a", 4000), Sensitive: true})
			return err
		}, step: func(s *speaker) error { return s.WriteContinuation(s.stream, false, s.block.Bytes()) }}),
		// It ends when the buffers of both systems are full, which can be never.
		s.frames("pings, the answers not read", 4, flood{times: 1_000_000, deaf: true, stays: true, step: func(s *speaker) error {
			return s.WritePing(false, [8]byte{})
		}}),
		s.frames("a window of zero", 8, flood{
			times: 250, stays: true, settings: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}},
			step: func(s *speaker) error {
				_, err := s.request("GET", "/", true)
				return err
			},
		}),
	}
}
