package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var lasts = flag.Duration("attack", time.Second, "how long each attack lasts, at least")

// residentLimit is the limit of the agent's resident memory in MiB, whatever strangers send. With
// an outbox that is full of the largest events, it is residentFull.
const (
	residentLimit = 40
	residentFull  = 44
)

// attack is one connection of a stranger. It returns when the agent has enough of it, or ctx ends.
type attack func(ctx context.Context, conn net.Conn)

// halfSent writes the beginning of a request and stays.
func halfSent(path string, announced, sent int) attack {
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: agent\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
		path, announced)
	return func(_ context.Context, conn net.Conn) {
		_, _ = io.WriteString(conn, head+strings.Repeat(" ", sent))
		_, _ = io.Copy(io.Discard, conn)
	}
}

// largeHeader writes the beginning of a header and stays.
func largeHeader(_ context.Context, conn net.Conn) {
	_, _ = io.WriteString(conn, "POST /validate/widgets HTTP/1.1\r\nHost: agent\r\nX: "+strings.Repeat("a", 60<<10))
	_, _ = io.Copy(io.Discard, conn)
}

// manyMembers sends whole reviews that become large objects in memory.
func manyMembers(ctx context.Context, conn net.Conn) {
	const size = 8 << 20
	begin := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE",` +
		`"kind":{"version":"v1","kind":"ConfigMap"},"name":"x","object":{"metadata":{`
	body := begin + strings.Repeat(`"":0,`, (size-len(begin))/5-10) + `"":0}}}}`

	for ctx.Err() == nil {
		if _, err := fmt.Fprintf(conn, "POST /validate/widgets HTTP/1.1\r\nHost: agent\r\n"+
			"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
			return
		}
		if _, err := conn.Read(make([]byte, 16<<10)); err != nil {
			return
		}
	}
}

// deepReviews sends whole reviews of objects that nest as deep as JSON may. They end at the same moment on
// all connections.
func deepReviews(ctx context.Context, conn net.Conn) {
	const depth, together = 9990, 400 * time.Millisecond
	body := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE",` +
		`"kind":{"version":"v1","kind":"ConfigMap"},"name":"x","object":{"spec":` +
		strings.Repeat("[", depth) + strings.Repeat("]", depth) + `}}}`

	for ctx.Err() == nil {
		if _, err := fmt.Fprintf(conn, "POST /validate/widgets HTTP/1.1\r\nHost: agent\r\n"+
			"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body)+1, body); err != nil {
			return
		}

		time.Sleep(time.Until(time.Now().Truncate(together).Add(together)))
		_, _ = io.WriteString(conn, " ")
		if _, err := conn.Read(make([]byte, 16<<10)); err != nil {
			return
		}
	}
}

// largeUID sends a whole review, and reads no answer. Each byte of its uid is not UTF-8, and becomes three.
func largeUID() attack {
	var turns sync.Mutex // Together, the bodies would find no room.
	body := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"operation":"CREATE",` +
		`"kind":{"version":"v1","kind":"ConfigMap"},"name":"x","uid":"` + strings.Repeat("\xff", 7<<20) + `"}}`
	return func(_ context.Context, conn net.Conn) {
		turns.Lock()
		defer turns.Unlock()
		_, _ = fmt.Fprintf(conn, "POST /validate/widgets HTTP/1.1\r\nHost: agent\r\n"+
			"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		_, _ = conn.Read(make([]byte, 1))
	}
}

// oneOf attacks in another way on each connection.
func oneOf(attacks ...attack) attack {
	var next atomic.Int64
	return func(ctx context.Context, conn net.Conn) { attacks[int(next.Add(1))%len(attacks)](ctx, conn) }
}

// helloHalfSent writes the beginning of the largest ClientHello that there is (RFC 8446, section
// 4).
func helloHalfSent(_ context.Context, conn net.Conn) {
	const record = 1 << 14
	message := append([]byte{1, 0, 0xff, 0xff}, make([]byte, 1<<16)...)
	for begin := 0; begin < 60<<10; begin += record {
		_, _ = conn.Write(append([]byte{22, 3, 1, record >> 8, record & 0xff}, message[begin:begin+record]...))
	}

	_, _ = io.Copy(io.Discard, conn)
}

// Strangers without a certificate cannot take the agent beyond the limit of its manifest.
func TestResidentMemoryUnderHostileInput(t *testing.T) {
	if testing.Short() || runtime.GOOS != "linux" {
		t.Skip("builds a binary, attacks it for a while, and reads /proc")
	}

	path := binary(t)
	for name, test := range map[string]struct {
		connections int
		plain       bool
		attack      attack
	}{
		"canary bodies":       {512, false, halfSent("/canary", 64<<10, 60<<10)},
		"small canary bodies": {512, false, halfSent("/canary", 16<<10, 16<<10-1)},
		"small reviews":       {512, false, halfSent("/validate/widgets", 64<<10, 60<<10)},
		"large reviews":       {512, false, halfSent("/validate/widgets", 8<<20, 4<<20)},
		"headers":             {512, false, largeHeader},
		"members":             {16, false, manyMembers},
		"deep reviews":        {512, false, deepReviews},
		"large uids":          {16, false, largeUID()},
		"handshakes":          {512, true, helloHalfSent},
		"all": {512, false, oneOf(halfSent("/canary", 16<<10, 16<<10-1), halfSent("/validate/widgets", 64<<10, 60<<10),
			halfSent("/validate/widgets", 8<<20, 4<<20), largeHeader, manyMembers)},
	} {
		for _, full := range []bool{false, true} {
			limit := residentLimit
			if full {
				name += ", with a full outbox"
				limit = residentFull
			}

			t.Run(name, func(t *testing.T) {
				peak := assailed(t, path, full, test.connections, test.plain, test.attack)
				if peak > float64(limit) {
					// On a busy machine the collector of the agent may get no processor for a moment. A peak
					// counts if another agent has it, too.
					t.Logf("a peak of %.1f MiB: once more", peak)
					peak = assailed(t, path, full, test.connections, test.plain, test.attack)
				}
				if peak > float64(limit) {
					t.Errorf("peak of the resident memory is %.1f MiB, want at most %d", peak, limit)
				}
			})
		}
	}
}

// scraped returns the metrics of an agent.
func scraped(t *testing.T, address string) string {
	t.Helper()

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	noError(t, err)
	answer, err := new(http.Client).Do(request)
	noError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	noError(t, err)

	return string(text)
}

// overflowed matches the metric of events that an outbox had no room for.
var overflowed = regexp.MustCompile(`events_dropped_total{[^}]*reason="overflow"[^}]*} [1-9]`)

// fill posts reviews of objects with the longest names, owners and versions that the agent takes,
// until its outbox drops events.
func fill(t *testing.T, p pki, webhook string) {
	t.Helper()

	const writers, objects = 8, 5000 // Of 2.2 kB each.
	transport := &http.Transport{
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: p.ca.Pool()},
		MaxIdleConnsPerHost: writers,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: patience}

	var (
		all    sync.WaitGroup
		serial atomic.Int64
	)
	for range writers {
		all.Go(func() {
			// The second round gives each key a newer event beside it.
			for n := serial.Add(1); n <= 2*objects && !t.Failed(); n = serial.Add(1) {
				body := largestReview(int(n) % objects)
				request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+webhook+"/validate/widgets", strings.NewReader(body))
				request.Header.Set("Content-Type", "application/json")
				request.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
				answer, err := client.Do(request)
				if err != nil {
					t.Errorf("review: %v", err)
					return
				}

				_, _ = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
			}
		})
	}

	all.Wait()
}

func largestReview(number int) string {
	const identity = 1024 - len("default") - len("v1") - len("ConfigMap")
	name := fmt.Sprintf("%0*d", identity, number)
	object := func(version int) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s","namespace":"default","uid":"%064d",`+
			`"resourceVersion":"%d","annotations":{"operator.kyma-project.io/owned-by":"%s/%s"}},"data":{"a":"%d"}}`,
			name, number, version, strings.Repeat("n", 63), strings.TrimSuffix(strings.Repeat(strings.Repeat("o", 62)+".", 4), "."), version)
	}

	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"UPDATE",`+
		`"kind":{"version":"v1","kind":"ConfigMap"},"name":"%s","namespace":"default","object":%s,"oldObject":%s}}`,
		name, object(2), object(1))
}

// assailed returns the peak of the resident memory of a new agent under an attack, in MiB.
func assailed(t *testing.T, path string, full bool, connections int, plain bool, attack attack) (peak float64) {
	t.Helper()

	p := newPKI(t)
	status := http.StatusOK
	if full {
		status = http.StatusServiceUnavailable
	}

	kcp := newControlPlane(t, p, status)
	ca, cert, key := p.volume.Paths()
	agent := startProcess(patient(t), t, path, "WEBHOOK_PORT=0", "METRICS_PORT=0",
		"CA_CERT="+ca, "TLS_CERT="+cert, "TLS_KEY="+key, "KCP_ADDR="+kcp.address(),
		"CANARY_LEASE=kyma-system/canary", "CANARY_API_SERVER=https://127.0.0.1:1",
		"CANARY_CA_CERT="+ca, "CANARY_TOKEN_FILE="+ca)

	webhook, metrics := agent.log.addresses(t)
	if full {
		fill(t, p, webhook)
		if text := scraped(t, metrics); !overflowed.MatchString(text) {
			t.Fatalf("no event was dropped, so the outbox is not full:\n%s", text)
		}

		t.Logf("%.1f MiB with a full outbox, before the attack", residentPeak(t, agent.Process.Pid))
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var (
		strangers sync.WaitGroup
		written   atomic.Int64
	)

	for range connections {
		strangers.Go(func() { assail(ctx, p, webhook, plain, attack, &written) })
	}

	awaitAttack(t, &written)
	stop()
	strangers.Wait()
	peak = residentPeak(t, agent.Process.Pid)
	t.Logf("%.1f MiB after %d bytes", peak, written.Load())
	noError(t, agent.Process.Kill())
	_ = agent.Wait() // It was killed.

	return peak
}

// awaitAttack returns after that time and 1 MiB. It is the control of the attack: a target that takes less
// is not attacked.
func awaitAttack(t *testing.T, written *atomic.Int64) {
	t.Helper()

	const enough = 1 << 20
	tick := time.NewTicker(*lasts)
	defer tick.Stop()

	for began := time.Now(); time.Since(began) < patience; {
		<-tick.C
		if written.Load() >= enough {
			return
		}
	}

	t.Fatalf("the agent took %d bytes within %s, want %d: the attack does not arrive", written.Load(), patience, enough)
}

// counted counts the bytes that the other end or a socket took.
type counted struct {
	net.Conn

	written *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

// assail attacks until ctx ends, on a new connection when the last one was closed.
func assail(ctx context.Context, p pki, address string, plain bool, attack attack, written *atomic.Int64) {
	dial := (&tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: p.ca.Pool()}}).DialContext
	if plain {
		dial = (&net.Dialer{}).DialContext
	}

	for ctx.Err() == nil {
		conn, err := dial(ctx, "tcp", address)
		if err != nil {
			continue
		}

		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		attack(ctx, counted{conn, written})
		stop()
		_ = conn.Close() // The attack is over.
	}
}
