package natsjetstream_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/runtime-watcher/runtime-watcher/adapters/natsjetstream"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// limited is a server with limits. Lines are of the top level, and js is in the block of JetStream.
type limited struct{ lines, js string }

// newLimitedBroker starts the server of this repository, or the program of a path.
func newLimitedBroker(t *testing.T, program string, with limited) *broker {
	t.Helper()

	b := &broker{t: t, addr: reservedAddr(t), dir: t.TempDir(), program: program}
	b.limit(with)
	b.start()
	t.Cleanup(b.kill)

	return b
}

func (b *broker) limit(with limited) {
	b.t.Helper()
	config := fmt.Sprintf("listen: %q\n%s\njetstream { store_dir: %q\n%s }\n", b.addr, with.lines, b.dir, with.js)
	check(b.t, os.WriteFile(b.config(), []byte(config), 0o600))
}

// onEachServer runs a test with the server of this repository, and with an older one that is
// installed.
func onEachServer(t *testing.T, test func(t *testing.T, program string)) {
	t.Helper()

	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, "")
	})
	path, err := exec.LookPath("nats-server")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/nats-server")
	}

	t.Run("installed", func(t *testing.T) {
		t.Parallel()
		if err != nil {
			t.Skip("needs a second NATS server (Debian: nats-server):", err)
		}

		test(t, filepath.Clean(path))
	})
}

// gauges has what a consumer reports of each manager.
type gauges struct {
	mu          sync.Mutex
	unavailable map[core.Manager][]string
	backlogs    map[core.Manager]int
}

func (g *gauges) hooks() natsjetstream.Hooks {
	g.unavailable = map[core.Manager][]string{}
	g.backlogs = map[core.Manager]int{}
	return natsjetstream.Hooks{
		Unavailable: func(u hook.Unavailability) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.unavailable[u.Manager] = append(g.unavailable[u.Manager], string(u.Reason))
		},
		Backlog: func(b hook.Backlog) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.backlogs[b.Manager]++
		},
	}
}

// last returns the last reason of a manager, and the number of its backlogs.
func (g *gauges) last(manager core.Manager) (reason string, backlogs int) {
	g.mu.Lock()
	defer g.mu.Unlock()

	if all := g.unavailable[manager]; len(all) > 0 {
		reason = all[len(all)-1]
	}
	return reason, g.backlogs[manager]
}

// consumeTwo starts a consumer for two managers. Its streams have the configurations of stream.
func consumeTwo(t *testing.T, b *broker, stream func(core.Manager) jetstream.StreamConfig) (
	c *natsjetstream.Consumer, handler *coretest.Recorder, reported *gauges,
) {
	t.Helper()

	handler = &coretest.Recorder{}
	reported = &gauges{}
	c = must(natsjetstream.NewConsumer(b.connect(), allowAll(),
		map[core.Manager]core.Handler{manager: handler, "other-operator": handler},
		natsjetstream.Options{Stream: stream, Hooks: reported.hooks()}))
	run(t, c)

	return c, handler, reported
}

// A server may allow small pulls only, from the start or after a change. Pulls shrink, and each
// message is handled.
func TestSmallPulls(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, program string) {
		t.Helper()

		for _, limit := range []int{1, 2, 100} {
			t.Run(strconv.Itoa(limit), func(t *testing.T) {
				t.Parallel()

				b := newLimitedBroker(t, program, limited{js: fmt.Sprintf("limits { max_request_batch: %d }", limit)})
				c, handler, _ := consumeTwo(t, b, nil)
				b.awaitStream(manager)
				b.awaitStream("other-operator")
				f := b.forwarder("runtime-1", natsjetstream.ForwarderOptions{})

				for n := range uint64(5) {
					mustForward(t, f, numbered(n+1, fmt.Sprint("object-", n)))
				}

				check(t, f.Forward(t.Context(), "other-operator", numbered(1, "a")))
				if got := len(handler.Acknowledged(manager)); got != 5 {
					t.Errorf("%d of 5 events are handled", got)
				}
				if err := c.Ready(); err != nil {
					t.Errorf("Ready = %v", err)
				}
			})
		}
	})
}

// Another program may bound the pulls of the durable consumer while messages are taken.
func TestPullsShrinkLater(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, program string) {
		t.Helper()

		b := newLimitedBroker(t, program, limited{})
		c, handler, _ := consumeTwo(t, b, nil)
		f := b.forwarder("runtime-1", natsjetstream.ForwarderOptions{})
		b.awaitStream(manager)
		mustForward(t, f, numbered(1, "a"))
		streams := must(jetstream.New(b.connect()))
		stream := must(streams.Stream(t.Context(), "watch-"+string(manager)))
		config := must(stream.Consumer(t.Context(), string(manager))).CachedInfo().Config
		config.MaxRequestBatch = 3
		must(stream.UpdateConsumer(t.Context(), config))
		mustForward(t, f, numbered(2, "b"))
		mustForward(t, f, numbered(3, "c"))

		if got := len(handler.Acknowledged(manager)); got != 3 {
			t.Errorf("%d of 3 events are handled", got)
		}
		if err := c.Ready(); err != nil {
			t.Errorf("Ready = %v", err)
		}
		if got := must(stream.Consumer(t.Context(), string(manager))).CachedInfo().Config.MaxRequestBatch; got != 3 {
			t.Errorf("the bound of the pulls is %d, want that of the other program", got)
		}
	})
}

// A server that refuses a stream is named with its words, at the one manager that it concerns,
// until it allows the stream. The backlog is unknown, and not 0.
func TestStreamThatIsRefused(t *testing.T) {
	t.Parallel()

	type test struct {
		limited

		words  string
		stream func(core.Manager) jetstream.StreamConfig
		// beside is whether the stream of the other manager is there before.
		beside bool
	}

	only := func(change func(*jetstream.StreamConfig)) func(core.Manager) jetstream.StreamConfig {
		return func(m core.Manager) jetstream.StreamConfig {
			config := natsjetstream.StreamConfig(m)
			config.MaxBytes = 1 << 20

			if m == manager {
				change(&config)
			}
			return config
		}
	}

	account := func(limits string) limited {
		return limited{lines: "accounts { A { jetstream { " + limits + " }, users: [ { user: a, password: a } ] } }\nno_auth_user: a"}
	}
	large := only(func(config *jetstream.StreamConfig) { config.MaxBytes = 1 << 30 })
	for name, test := range map[string]test{
		"max_file":                {limited: limited{js: "max_file: 256MB"}, words: "insufficient storage", stream: large},
		"max_file of the account": {limited: account("max_file: 256MB"), words: "insufficient storage", stream: large},
		"max_bytes of each stream": {
			limited: account("max_bytes: true"), words: "max bytes",
			stream: only(func(c *jetstream.StreamConfig) { c.MaxBytes = -1 }),
		},
		"duplicate_window": {limited: limited{js: "limits { duplicate_window: \"1m\" }"}, words: "duplicates window"},
		"max_streams":      {limited: account("max_streams: 1"), words: "maximum number of streams", beside: true},
		"a subject of another stream": {
			words: "overlap", beside: true,
			stream: only(func(c *jetstream.StreamConfig) { c.Subjects = []string{"watch.other-operator.>"} }),
		},
		"subjects of others": {
			words:  "does not accept the subject",
			stream: only(func(c *jetstream.StreamConfig) { c.Subjects = []string{"other.>"} }),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachServer(t, func(t *testing.T, program string) {
				t.Helper()

				b := newLimitedBroker(t, program, test.limited)
				if test.beside { // Two streams at the same moment can both escape the check of a server.
					config := natsjetstream.StreamConfig("other-operator")
					must(must(jetstream.New(b.connect())).CreateStream(t.Context(), config))
				}

				c, _, reported := consumeTwo(t, b, test.stream)
				var err error
				eventually(t, "Ready names the refusal", func() bool {
					err = c.Ready()
					return err != nil && strings.Contains(err.Error(), test.words)
				})
				refused := manager

				if !strings.Contains(err.Error(), string(manager)+":") {
					refused = "other-operator"
				}
				if reason, backlogs := reported.last(refused); reason == "" || backlogs > 0 {
					t.Errorf("%s: reported as %q, with %d backlogs, want a reason and no backlog", refused, reason, backlogs)
				}
			})
		})
	}
}

// The problem ends when an administrator grants the limit.
func TestRefusedStreamIsGrantedLater(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, program string) {
		t.Helper()

		b := newLimitedBroker(t, program, limited{js: "max_file: 256MB"})
		c, _, reported := consumeTwo(t, b, nil)
		eventually(t, "both streams are refused", func() bool {
			err := c.Ready()
			return err != nil && strings.Contains(err.Error(), string(manager)+":") && strings.Contains(err.Error(), "other-operator:")
		})
		b.kill()
		b.limit(limited{})
		b.start()
		eventually(t, "Ready is nil", func() bool { return c.Ready() == nil })

		for _, m := range []core.Manager{manager, "other-operator"} {
			if reason, backlogs := reported.last(m); reason != "" || backlogs == 0 {
				t.Errorf("%s: reported as %q, with %d backlogs, want none of the one and some of the other", m, reason, backlogs)
			}
		}
	})
}

// A server or a stream may take smaller messages than a batch of contract v3. The outbox sends
// smaller batches, and its heartbeats arrive.
func TestSmallMessages(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, program string) {
		t.Helper()

		for name, test := range map[string]struct {
			limited

			stream func(core.Manager) jetstream.StreamConfig
		}{
			"max_payload": {limited{lines: "max_payload: 16384"}, nil},
			"MaxMsgSize": {limited{}, func(m core.Manager) jetstream.StreamConfig {
				config := natsjetstream.StreamConfig(m)
				config.MaxMsgSize = 16 << 10
				return config
			}},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()

				b := newLimitedBroker(t, program, test.limited)
				_, handler, _ := consumeTwo(t, b, test.stream)
				b.awaitStream(manager)
				f := b.forwarder("runtime-1", natsjetstream.ForwarderOptions{})
				box := must(outbox.New(f, outbox.Options{
					MaxBatch: 500, Epoch: "e1", Resend: []time.Duration{}, ResendResync: -1, DrainTimeout: -1, Settle: -1,
				}))

				const events = 200
				for i := range events {
					box.Accept(manager, named(fmt.Sprintf("object-%03d", i)))
				}

				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- box.Start(ctx) }()
				eventually(t, "all events are delivered", func() bool { return box.Counts()[manager].Delivered == events })
				cancel()
				check(t, <-done)

				if got := len(handler.Acknowledged(manager)); got < events {
					t.Errorf("%d of %d events are handled", got, events)
				}
			})
		}
	})
}

// A stream takes the messages of a manager if one of its subjects includes those of all runtimes.
func TestCovers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		subjects []string
		takes    bool
	}{
		{[]string{"watch.my-operator.*"}, true},
		{[]string{"watch.>"}, true},
		{[]string{"other.*", "*.*.*"}, true},
		{[]string{">"}, true},
		{nil, false},
		{[]string{"watch.*"}, false},
		{[]string{"watch.my-operator"}, false},
		{[]string{"watch.my-operator.runtime-1"}, false},
		{[]string{"watch.my-operator.*.*"}, false},
		{[]string{"watch.my-operator.*.>"}, false},
		{[]string{"watch.other.*"}, false},
	} {
		err := natsjetstream.CheckSubjects(&jetstream.StreamConfig{Subjects: test.subjects}, manager)
		if (err == nil) != test.takes {
			t.Errorf("a stream with the subjects %q: %v, want that it takes the manager: %t", test.subjects, err, test.takes)
		}
	}
}
