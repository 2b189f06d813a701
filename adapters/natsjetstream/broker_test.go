package natsjetstream_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if program.dir != "" {
			_ = os.RemoveAll(program.dir)
		}
		os.Exit(code)
	}))
}

// program is the NATS server of test/lab/natsserver. It is a process, so that the module of this
// package does not depend on the server.
var program struct {
	once sync.Once
	dir  string
	err  error
}

func serverProgram(t *testing.T) string {
	t.Helper()

	root, copied := os.LookupEnv("RUNTIME_WATCHER_ROOT") // make mutants copies the module.
	if !copied {
		root = filepath.Join("..", "..")
	}

	source := filepath.Join(root, "test", "lab", "natsserver")
	if _, err := os.Stat(filepath.Join(root, "go.work")); err != nil {
		t.Skip("the NATS server is in the repository, not in this module:", err)
	}

	program.once.Do(func() {
		program.dir, program.err = os.MkdirTemp("", "natsserver") //nolint:usetesting // All tests share it.
		if program.err != nil {
			return
		}

		build := exec.Command("go", "build", "-o", filepath.Join(program.dir, "natsserver"), ".")
		build.Dir = source
		build.Env = append(os.Environ(), "GOFLAGS=")
		if out, err := build.CombinedOutput(); err != nil {
			program.err = fmt.Errorf("build the NATS server: %w: %s", err, out)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}

	return filepath.Join(program.dir, "natsserver")
}

// broker is a NATS server process without TLS. Attacks and failures are in test/nats.
type broker struct {
	t         *testing.T
	addr, dir string
	// program is a path, "" for the server of this repository.
	program string
	process *exec.Cmd
}

func newBroker(t *testing.T) *broker {
	t.Helper()

	b := &broker{t: t, addr: reservedAddr(t), dir: t.TempDir()}
	config := fmt.Sprintf("listen: %q\njetstream { store_dir: %q }\n", b.addr, b.dir)
	check(t, os.WriteFile(b.config(), []byte(config), 0o600))
	b.start()
	t.Cleanup(b.kill)

	return b
}

func (b *broker) config() string { return filepath.Join(b.dir, "nats.conf") }

// start returns when the server accepts connections.
func (b *broker) start() {
	b.t.Helper()

	program := b.program
	if program == "" {
		program = serverProgram(b.t)
	}

	b.process = exec.Command(program, "-c", b.config()) // Its life is that of the broker.
	b.process.SysProcAttr = endWithTests()
	if err := b.process.Start(); err != nil {
		b.t.Fatal(err)
	}

	eventually(b.t, "the NATS server accepts connections", func() bool {
		conn, err := nats.Connect(b.addr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

func (b *broker) kill() {
	if b.process != nil {
		_ = b.process.Process.Kill()
		_ = b.process.Wait()
		b.process = nil
	}
}

// connect returns a connection that the test closes.
func (b *broker) connect(opts ...nats.Option) *nats.Conn {
	b.t.Helper()

	conn, err := nats.Connect(b.addr, append(opts, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
		nats.Timeout(patience))...)
	if err != nil {
		b.t.Fatal(err)
	}

	b.t.Cleanup(conn.Close)
	return conn
}

// forwarder returns a forwarder with the options of a runtime, except TLS. Unless opts has another
// wait, it waits for the answer of the operator.
func (b *broker) forwarder(runtime core.RuntimeID, opts natsjetstream.ForwarderOptions) *natsjetstream.Forwarder {
	b.t.Helper()

	opts.AnswerWait = cmp.Or(opts.AnswerWait, patience)
	opts.Timeout = cmp.Or(opts.Timeout, patience)
	options := append(natsjetstream.ConnectOptions(runtime, noKeys), func(o *nats.Options) error {
		o.Secure = false
		o.TLSConfig = nil
		o.RootCAsCB = nil
		return nil
	}, nats.ReconnectJitter(0, 0))
	return must(natsjetstream.NewForwarder(b.connect(options...), runtime, opts))
}

func noKeys() (*tls.Certificate, *x509.CertPool) { return &tls.Certificate{}, nil }

// run runs a consumer until the test ends, or until the result is called.
func run(t *testing.T, c *natsjetstream.Consumer) (stop func()) {
	t.Helper()

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Start = %v, want nil", err)
		}
	})

	t.Cleanup(stop)
	return stop
}

// reservedAddr returns an address that no other process gets by chance until the test ends. A bound
// socket that never listens holds it.
func reservedAddr(t *testing.T) string {
	t.Helper()

	syscall.ForkLock.RLock()
	holder := must(syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0))
	syscall.CloseOnExec(holder)
	syscall.ForkLock.RUnlock()
	t.Cleanup(func() { _ = syscall.Close(holder) })
	err := syscall.Bind(holder, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	if err = errors.Join(err, syscall.SetsockoptInt(holder, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)); err != nil {
		t.Fatal(err)
	}

	own, _ := must(syscall.Getsockname(holder)).(*syscall.SockaddrInet4)
	return fmt.Sprint("127.0.0.1:", own.Port)
}

// patience is for a busy machine.
const patience = 2 * time.Minute

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()

	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()

	deadline := time.After(patience)
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after %v it is not so that %s", patience, what)
		}
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// awaitStream waits until a consumer has made the stream and its durable consumer.
func (b *broker) awaitStream(manager core.Manager) {
	b.t.Helper()
	stream := must(jetstream.New(b.connect()))
	eventually(b.t, "the stream of "+string(manager)+" exists", func() bool {
		_, err := stream.Consumer(b.t.Context(), "watch-"+string(manager), string(manager))
		return err == nil
	})
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func newLog() (*slog.Logger, *locked) {
	log := &locked{to: &strings.Builder{}}
	return slog.New(slog.NewTextHandler(log, nil)), log
}

// A killed server fails no request for messages: the client waits for the next one. So the consumer
// reports the connection itself, each time.
func TestLostConnectionIsLogged(t *testing.T) {
	t.Parallel()

	logger, log := newLog()
	s := newScene(t, allowAll(), natsjetstream.Options{Logger: logger})

	for n := range 2 {
		s.kill()
		eventually(t, "the loss is logged", func() bool { return log.count("connection to the NATS server lost") == n+1 })

		if got := log.count("connected to the NATS server again"); got != n {
			t.Errorf("%d returns are logged before the server runs, want %d", got, n)
		}

		s.start()
		eventually(t, "the return is logged", func() bool { return log.count("connected to the NATS server again") == n+1 })
	}
}

// The same fault is logged each time that it begins, and so is its end.
func TestStreamThatFailsAgainIsLoggedAgain(t *testing.T) {
	t.Parallel()

	logger, log := newLog()
	s := newScene(t, allowAll(), natsjetstream.Options{Logger: logger})
	admin := must(jetstream.New(s.connect()))

	for range 2 {
		// One failure may have several reasons, and each has its end.
		failures := log.count("no messages from the stream")
		ends := log.count("the consumer receives messages from the stream again")
		check(t, admin.DeleteStream(t.Context(), "watch-"+string(manager)))
		eventually(t, "the failure is logged", func() bool { return log.count("no messages from the stream") > failures })
		eventually(t, "its end is logged", func() bool { return log.count("the consumer receives messages from the stream again") > ends })
	}
}

// TestForwarderConformance runs the suite of the port against a real server and a consumer of
// production, of which only the verifier and the handler are replaced.
func TestForwarderConformance(t *testing.T) {
	t.Parallel()

	unsendable := core.WatchEvent{}
	coretest.TestForwarder(t, func(t *testing.T, farEnd *coretest.Recorder) coretest.ForwarderHarness {
		t.Helper()

		b := newBroker(t)
		none := core.HandlerFunc(func(context.Context, core.Delivery) error { return nil })
		consumer := must(natsjetstream.NewConsumer(b.connect(), allowAll(),
			map[core.Manager]core.Handler{"manager-a": none, "manager-b": none},
			natsjetstream.Options{HandleTimeout: time.Second}))
		consumer.ReceiveWith(farEnd)
		run(t, consumer)
		b.awaitStream("manager-a")
		b.awaitStream("manager-b")
		// The suite expects the wait of the far end only. A message that a killed server has not
		// answered ends in time for it.
		forwarder := b.forwarder("runtime-1", natsjetstream.ForwarderOptions{
			RefusedRetryAfter: -1, AnswerWait: 5 * time.Second, Timeout: patience / 4,
		})

		return coretest.ForwarderHarness{Forwarder: forwarder, Disconnect: b.kill}
	}, coretest.ForwarderOptions{Unsendable: &unsendable})
}

// The consumer behaves as every receiver does.
func TestReceiverConformance(t *testing.T) {
	t.Parallel()
	coretest.TestReceiver(t, func(t *testing.T, parts coretest.ReceiverParts) func(core.RuntimeID) core.Forwarder {
		t.Helper()

		b := newBroker(t)
		run(t, must(natsjetstream.NewConsumer(b.connect(), parts.Verifier, parts.Handlers,
			natsjetstream.Options{Fleet: parts.Fleet})))
		b.awaitStream(manager)

		return func(runtime core.RuntimeID) core.Forwarder {
			return b.forwarder(runtime, natsjetstream.ForwarderOptions{AnswerWait: patience / 2})
		}
	}, coretest.ReceiverOptions{})
}
