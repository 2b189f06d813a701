package hardening

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// stateAddr makes the test binary the listener that is attacked, in place of a test. The listener
// serves its state at that address.
const stateAddr = "HARDENING_STATE_ADDR"

func TestMain(m *testing.M) {
	if os.Getenv(stateAddr) == "" {
		os.Exit(m.Run())
	}
	fmt.Fprintln(os.Stderr, runBesieged(os.Getenv(stateAddr)))
	os.Exit(1)
}

// maxBesieged is the limit of connections of the listener that is attacked.
const maxBesieged = 128

// besieged is the report of the listener about itself.
type besieged struct {
	Goroutines int   `json:"goroutines"`
	Dropped    int64 `json:"dropped"`
	Handshakes int64 `json:"handshakes"` // that failed
	TooFast    int64 `json:"tooFast"`
}

// runBesieged serves natively, with a log at debug level and short deadlines. Its other settings
// are in the environment.
func runBesieged(state string) error {
	files := keys.Paths{CA: os.Getenv("CA_CERT"), Certificate: os.Getenv("TLS_CERT"), Key: os.Getenv("TLS_KEY")}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	material, err := keys.NewFiles(files, keys.FilesOptions{Logger: log})
	if err != nil {
		return err
	}
	var dropped, handshakes, tooFast atomic.Int64
	server, err := listener.New(listener.FromTLSWithRoots(keys.Roots(material), listener.PeerOptions{}),
		listener.InsecureAllowAll(),
		map[core.Manager]core.Handler{manager: core.HandlerFunc(printBesieged)}, listener.Options{
			Addr: os.Getenv("LISTEN"), TLS: keys.ServerTLSConfig(material), Logger: log,
			MaxConnections: maxBesieged,
			ReadTimeout:    4 * time.Second, HandleTimeout: time.Second, IdleTimeout: 10 * time.Second,
			Hooks: listener.Hooks{
				ConnectionDropped: func(string) { dropped.Add(1) },
				HandshakeFailed:   func(string) { handshakes.Add(1) },
				Answered: func(_ string, _ core.Manager, _ int, reason string, _ time.Duration) {
					if reason == reasons.TooFast {
						tooFast.Add(1)
					}
				},
			},
		})
	if err != nil {
		return err
	}
	reports := &http.Server{
		Addr: state, ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if server.Addr() == nil {
				return // An empty answer: it does not listen yet.
			}
			_ = json.NewEncoder(w).Encode(besieged{
				runtime.NumGoroutine(), dropped.Load(), handshakes.Load(),
				tooFast.Load(),
			})
		}),
	}
	go func() { _ = reports.ListenAndServe() }() // Until the process is killed.
	return server.Start(context.Background())
}

// printBesieged prints a delivery as examples/minimal does.
func printBesieged(_ context.Context, d core.Delivery) error {
	_, err := fmt.Printf("{\"runtime\":%q,\"name\":%q}\n", d.Runtime, d.Event.Watched.Name)
	return err
}
