package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// run serves until ctx ends. It prints deliveries to stdout, and to stderr a log that begins with the address.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	settings := newSettings(getenv)

	config, err := settings.parse(args)

	switch {
	case errors.Is(err, flag.ErrHelp):
		_, err = io.WriteString(stdout, settings.help())

		return err
	case err != nil:
		return err
	}

	return serve(ctx, config, newPrinter(stdout), slog.New(slog.NewTextHandler(stderr, nil)))
}

func serve(ctx context.Context, config config, handler core.Handler, log *slog.Logger) error {
	files, err := httpmtls.NewFiles(config.files, httpmtls.FilesOptions{Logger: log})
	if err != nil {
		return fmt.Errorf("read key material: %w", err)
	}

	// Bound here, and not by the listener, so that the address is known before anything can go wrong with serving.
	bound, err := new(net.ListenConfig).Listen(ctx, "tcp", config.addr)
	if err != nil {
		return fmt.Errorf("bind %s: %w", config.addr, err)
	}

	server, err := newListener(config, files, handler, listener.Options{Listener: bound, Logger: log})
	if err != nil {
		return errors.Join(err, bound.Close())
	}

	log.InfoContext(ctx, "listening", slog.String("addr", bound.Addr().String()))

	return startAll(ctx, files.Start, server.Start)
}

// newListener chooses how a runtime proves who it is.
func newListener(config config, files *httpmtls.Files, handler core.Handler, opts listener.Options) (*listener.Listener, error) {
	var peers listener.Peers

	if len(config.gateways) > 0 {
		peers = listener.FromXFCC(listener.ProxyAddresses(config.gateways...), httpmtls.Roots(files), listener.PeerOptions{})
	} else {
		peers = listener.FromTLSWithRoots(httpmtls.Roots(files), listener.PeerOptions{})
		opts.TLS = httpmtls.ServerTLSConfig(files)
	}

	handlers := make(map[core.Manager]core.Handler)
	for _, manager := range config.managers {
		handlers[manager] = handler
	}

	// Whoever has a certificate may have a line printed. An operator pins: see listener.SANPinning.
	server, err := listener.New(peers, listener.InsecureAllowAll(), handlers, opts)
	if err != nil {
		return nil, fmt.Errorf("build the listener: %w", err)
	}

	return server, nil
}

// startAll runs until ctx ends or one of starts returns, and waits for all.
func startAll(ctx context.Context, starts ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	errs := make([]error, len(starts))

	var running sync.WaitGroup

	for i, start := range starts {
		running.Go(func() {
			defer cancel()

			errs[i] = start(ctx)
		})
	}

	running.Wait()

	return errors.Join(errs...)
}
