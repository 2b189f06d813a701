package agent

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/outbox"
)

// An agent ends when its transport hangs, so that its open connection does not keep it fresh. An
// agent that waits as the control plane asks goes on.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		interval time.Duration
		forward  func(ctx context.Context, hang <-chan struct{}) error
		want     error
	}{
		"a call that does not end": {5 * time.Minute, func(_ context.Context, hang <-chan struct{}) error { <-hang; return nil }, errHangs},
		"at the default interval":  {0, func(_ context.Context, hang <-chan struct{}) error { <-hang; return nil }, nil},
		"slow calls":               {5 * time.Minute, func(ctx context.Context, _ <-chan struct{}) error { <-ctx.Done(); return ctx.Err() }, nil},
		"asked to wait":            {5 * time.Minute, func(context.Context, <-chan struct{}) error { return later{} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				calls, hang := 0, make(chan struct{})
				agent := must(New(t.Context(), Parts{
					Source: func(ctx context.Context, _ *Inbox) error { <-ctx.Done(); return nil },
					Listen: func(context.Context, string, string) (net.Listener, error) { return make(deaf), nil },
					Transport: core.ForwarderFunc(func(ctx context.Context, _ core.Manager, _ core.Batch) error {
						calls++
						if calls == 1 {
							return nil
						}
						return test.forward(ctx, hang)
					}),
				}, Options{
					Managers: []core.Manager{"widgets"}, Outbox: outbox.Options{HeartbeatInterval: test.interval},
				}))(t)
				time.AfterFunc(20*time.Minute, func() { close(hang) })
				ctx, stop := context.WithTimeout(t.Context(), 20*time.Minute)
				defer stop()
				if err := agent.Start(ctx); !errors.Is(err, test.want) {
					t.Errorf("it ended with %v, want %v", err, test.want)
				}
				<-ctx.Done() // The parts of an agent that hangs end, too.
			})
		})
	}
}

// later asks for a wait.
type later struct{}

func (later) Error() string             { return "later" }
func (later) RetryAfter() time.Duration { return 4 * time.Minute }

// deaf accepts no connection until it is closed.
type deaf chan struct{}

func (d deaf) Accept() (net.Conn, error) { <-d; return nil, net.ErrClosed }
func (d deaf) Close() error              { close(d); return nil }
func (deaf) Addr() net.Addr              { return &net.TCPAddr{} }
