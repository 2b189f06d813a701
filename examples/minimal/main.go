// Minimal is a listener without Kubernetes. It prints each delivery to standard output, as one
// line of JSON. README.md shows how to run it, for direct connections and behind a gateway.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "minimal:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s, err := parse(args, stderr)
	if err != nil {
		return err
	}

	log := slog.New(slog.NewTextHandler(stderr, nil))
	files, err := keys.NewFiles(s.files, keys.FilesOptions{Logger: log})
	if err != nil {
		return err
	}

	server, err := newListener(s, files, newPrinter(stdout), listener.Options{Addr: s.addr, Logger: log})
	if err != nil {
		return err
	}

	// The files are read again when they change, so that a new certificate needs no restart.
	ctx, cancel := context.WithCancel(ctx)
	following := make(chan error)
	go func() { following <- files.Start(ctx) }()
	err = server.Start(ctx)
	cancel()

	return errors.Join(err, <-following)
}

// newListener identifies runtimes by their connections or, behind a gateway, by its header.
func newListener(s settings, files keys.Source, h core.Handler, opts listener.Options) (*listener.Listener, error) {
	peers := listener.FromXFCC(listener.ProxyAddresses(s.proxies...), keys.Roots(files),
		listener.PeerOptions{GatewayNames: s.gateways})
	if len(s.proxies) == 0 {
		peers = listener.FromTLS(keys.Roots(files), listener.PeerOptions{})
		opts.TLS = keys.ServerTLSConfig(files)
	}

	// Every runtime may send every event here. An operator uses listener.SANPinning.
	return listener.New(peers, listener.InsecureAllowAll(), map[core.Manager]core.Handler{s.manager: h}, opts)
}

// newPrinter returns a handler that prints each delivery. After an error, the runtime sends it
// once more.
func newPrinter(out io.Writer) core.Handler {
	var mu sync.Mutex
	return core.HandlerFunc(func(_ context.Context, d core.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		return json.NewEncoder(out).Encode(map[string]any{
			"received": d.Received.UTC(), "runtime": d.Runtime, "manager": d.Manager, "event": d.Event.KindWord(),
			"kind": d.Event.WatchedGVK.Kind, "namespace": d.Event.Watched.Namespace, "name": d.Event.Watched.Name,
		})
	})
}
