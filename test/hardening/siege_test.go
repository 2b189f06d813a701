package hardening

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener"
	"github.com/runtime-watcher/runtime-watcher/test/bench/kit"
	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// siegeShare is the share of the attackers. All of them take part only on request, because they
// share the machine with the listener.
var siegeShare = flag.Float64("siege", 0.1, "share of the attackers of a listener that come")

// siege is a listener that is attacked, in a process of its own: native mTLS, and a line of output
// for each event.
type siege struct {
	*kit.Process

	t         *testing.T
	pki       *lab.PKI
	addr, log string
	loud      tls.Certificate // of a runtime that attacks
	quiet     tls.Certificate
	hello     []byte
}

func newSiege(t *testing.T) *siege {
	t.Helper()
	lab.SkipShort(t)
	s := &siege{t: t, pki: lab.NewPKI(t), addr: lab.Address(lab.FreePort(t)), log: filepath.Join(t.TempDir(), "listener.log")}
	volume := s.pki.Volume(lab.Must(s.pki.CA.Server("listener", testpki.Options{})))
	s.Process = kit.Start(t, "listener", settings{kit.Paths(volume), s.addr, s.log})
	t.Cleanup(func() { lab.KeepsSecrets(t, s.fullLog(), lab.Secrets(volume)...) })
	s.loud = lab.Must(s.pki.CA.Client("loud", testpki.Options{})).TLS
	s.quiet = lab.Must(s.pki.CA.Client(runtimeName, testpki.Options{})).TLS
	s.hello = helloOf(t, s.client(s.loud))
	lab.Eventually(t, lab.Patience, "the listener reports its state", func() bool { return s.report().Goroutines > 0 })
	return s
}

// client returns the configuration of a runtime that connects.
func (s *siege) client(pair tls.Certificate, protocols ...string) *tls.Config {
	config := clientOf(s.pki, pair)
	config.NextProtos = protocols
	return config
}

// friend is a runtime from elsewhere with a connection of its own.
func (s *siege) friend() *http.Client {
	transport := &http.Transport{
		ForceAttemptHTTP2: true, TLSClientConfig: s.client(s.quiet), DialContext: from(friends).DialContext,
	}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: lab.Patience}
}

func (s *siege) fullLog() string { return string(lab.Must(os.ReadFile(s.log))) }

func (s *siege) report() (b besieged) {
	s.Ask("", &b)
	return b
}

func (s *siege) holds() holding {
	return holding{openFiles(s.Pid()), int(lab.Must(s.Used()).Resident >> 10), s.report().Goroutines}
}

// send posts one event as the quiet runtime.
func (s *siege) send(client *http.Client, name string) error {
	answer, err := lab.Post(s.t.Context(), client, "https://"+s.addr+eventPath, eventV2(name))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

func eventV2(name string) string {
	return `{"watched":{"Namespace":"default","Name":"` + name + `"},"watchedGvk":{"group":"","version":"v1","kind":"ConfigMap"}}`
}

// helloOf returns the first message of a client.
func helloOf(t *testing.T, config *tls.Config) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() { _ = tls.Client(ours, config).HandshakeContext(t.Context()) }() // No answer comes.
	record := make([]byte, 16<<10)
	return record[:lab.Must(theirs.Read(record))]
}

// strangers are attacks without a certificate.
func (s *siege) strangers() []attack {
	// says connects, writes a text, and waits for an answer or the end of the connection.
	says := func(text []byte) func(context.Context) error {
		return func(ctx context.Context) error {
			conn, err := from(attackers).DialContext(ctx, "tcp", s.addr)
			if err != nil {
				return err
			}
			defer conn.Close()
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			defer stop()
			if _, err := conn.Write(text); err != nil {
				return err
			}
			_, err = conn.Read(make([]byte, 1))
			return err
		}
	}
	return []attack{
		{"connections that say nothing", s.share(2000), time.Second, says(nil), false},
		{"hellos that cost their sender nothing", s.share(200), 20 * time.Millisecond, says(s.hello), true},
	}
}

// share returns the number of attackers that come.
func (s *siege) share(workers int) int { return max(int(float64(workers)**siegeShare), 1) }

// TestListenerUnderFlood has strangers, and a runtime with a good certificate, attack a listener
// that terminates TLS itself. Another runtime delivers meanwhile, on an open connection and on new
// ones.
func TestListenerUnderFlood(t *testing.T) {
	t.Parallel()
	// The listener has files of its own, and goroutines of requests: HTTP/2 has up to 256 requests on
	// each of the eight connections of an attacker. The race detector takes four times the memory.
	const otherFiles = 40
	most := limits{holding{maxBesieged + otherFiles, 256 << 10, 3*(maxBesieged+otherFiles) + 8*256}, maxBesieged}
	s := newSiege(t)
	patient := s.friend()
	lab.NoError(t, s.send(patient, "before"))
	before := s.holds()
	for _, attack := range append(s.strangers(), s.frameAttacks()...) {
		t.Run(attack.name, func(t *testing.T) {
			s.withstands(t, attack, patient, before, most)
		})
	}
	if s.report().TooFast == 0 {
		t.Error("no event of the loud runtime was refused as too fast")
	}
	lab.NoError(t, s.send(s.friend(), "after"))
	lab.Eventually(t, lab.Patience, "the event is delivered",
		func() bool { return strings.Contains(s.fullLog(), `{"runtime":"`+runtimeName+`","name":"after"}`) })
}

// TestListenerTellsNothing reads the answers to strangers, and to a runtime that makes mistakes.
func TestListenerTellsNothing(t *testing.T) {
	s := newSiege(t)
	other := lab.Must(testpki.NewCA("elsewhere", testpki.Options{}))
	foreign := lab.Must(other.Client(runtimeName, testpki.Options{})).TLS
	old := s.client(s.quiet)
	old.MinVersion = tls.VersionTLS12
	old.MaxVersion = tls.VersionTLS12
	anyway := s.client(tls.Certificate{})
	anyway.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &foreign, nil }
	tellNothing(t, s.addr, map[string]*tls.Config{
		"no certificate": s.client(tls.Certificate{}), "foreign certificate": anyway, "TLS 1.2": old,
	})
	const ends = "Host: a\r\nConnection: close\r\n"
	for name, text := range map[string]string{
		"no such path":   "GET / HTTP/1.1\r\n" + ends + "\r\n",
		"no such method": "BREW " + eventPath + " HTTP/1.1\r\n" + ends + "\r\n",
		"no such type":   "POST " + eventPath + " HTTP/1.1\r\nContent-Length: 2\r\n" + ends + "\r\n{}",
		"broken JSON": "POST " + eventPath + " HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 1\r\n" +
			ends + "\r\n{",
		"no HTTP": "\x00\x01\x02\r\n\r\n",
	} {
		conn := lab.Must(tlsFrom(t.Context(), attackers, s.addr, s.client(s.quiet)))
		lab.Must(io.WriteString(conn, text))
		answer, _ := io.ReadAll(conn)
		conn.Close()
		if !strings.HasPrefix(string(answer), "HTTP/1.1 4") || inside.Match(answer) {
			t.Errorf("%s is answered %q, want a refusal without internal details", name, answer)
		}
	}
}

func TestMain(m *testing.M) {
	os.Exit(kit.Main(m, map[string]func(context.Context) error{"listener": runBesieged}))
}

// maxBesieged is the limit of connections of the listener that is attacked.
const maxBesieged = 128

// settings are those of the listener.
type settings struct {
	Keys      keys.Paths
	Addr, Log string
}

// besieged is the report of the listener about itself. It is zero until the listener listens.
type besieged struct {
	Goroutines int
	TooFast    int64
}

// runBesieged serves natively, with a log at debug level and short deadlines. The log also has a
// line for each delivery, as examples/minimal prints it.
func runBesieged(ctx context.Context) error {
	s := kit.Settings[settings]()
	out := lab.Must(os.Create(s.Log))
	log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	material := lab.Must(keys.NewFiles(s.Keys, keys.FilesOptions{Logger: log}))
	handler := core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
		_, err := fmt.Fprintf(out, "{\"runtime\":%q,\"name\":%q}\n", d.Runtime, d.Event.Watched.Name)
		return err
	})
	var tooFast atomic.Int64
	server := lab.Must(listener.New(listener.FromTLS(keys.Roots(material), listener.PeerOptions{}),
		listener.InsecureAllowAll(), map[core.Manager]core.Handler{manager: handler}, listener.Options{
			Addr: s.Addr, TLS: keys.ServerTLSConfig(material), Logger: log,
			MaxConnections: maxBesieged,
			ReadTimeout:    2 * time.Second, HandleTimeout: time.Second, IdleTimeout: 10 * time.Second,
			Hooks: listener.Hooks{
				Answered: func(a hook.Answer) {
					if a.Reason == reasons.TooFast {
						tooFast.Add(1)
					}
				},
			},
		}))
	go func() {
		_ = kit.Answer(func(string) any { // Until the process is killed.
			if server.Addr() == nil {
				return besieged{}
			}
			return besieged{runtime.NumGoroutine(), tooFast.Load()}
		})
	}()
	return server.Start(ctx)
}
