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
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
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
	files, err := httpmtls.NewFiles(s.files, httpmtls.FilesOptions{Logger: log})
	if err != nil {
		return err
	}
	server, err := newListener(s, files, newPrinter(stdout), listener.Options{Addr: s.addr, Logger: log})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() { _ = files.Start(ctx) }) // It returns nil at the end of ctx.
	err = server.Start(ctx)
	cancel()
	following.Wait()
	return err
}

// newListener identifies runtimes by their connections or, behind a gateway, by its header.
func newListener(
	s settings, files *httpmtls.Files, printer core.Handler, opts listener.Options,
) (*listener.Listener, error) {
	peers := listener.FromXFCC(listener.ProxyAddresses(s.proxies...), httpmtls.Roots(files),
		listener.PeerOptions{GatewayNames: s.gateways})
	if len(s.proxies) == 0 {
		peers = listener.FromTLSWithRoots(httpmtls.Roots(files), listener.PeerOptions{})
		opts.TLS = httpmtls.ServerTLSConfig(files)
	}
	// Every runtime may send every event here. An operator uses listener.SANPinning.
	return listener.New(peers, listener.InsecureAllowAll(), map[core.Manager]core.Handler{s.manager: printer}, opts)
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

// settings are the values of the flags.
type settings struct {
	addr     string
	manager  core.Manager
	files    httpmtls.Paths
	proxies  []netip.Prefix
	gateways []string
}

func parse(args []string, stderr io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet("minimal", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.addr, "addr", ":8082", "`address` of the listener; port 0 takes a free port")
	flags.StringVar((*string)(&s.manager), "manager", "", "`name` of the manager that runtimes send events to")
	flags.StringVar(&s.files.CA, "ca", "", "`file` with the CAs of the runtimes")
	flags.StringVar(&s.files.Certificate, "cert", "", "`file` with the certificate of the listener, without a gateway")
	flags.StringVar(&s.files.Key, "key", "", "`file` with the private key of the listener")
	flags.Func("proxy-addresses", "address `ranges` of the gateway, or of its sidecar, that sends "+
		"X-Forwarded-Client-Cert", s.addProxies)
	flags.Func("gateway-names", "SAN `names` of the gateway, behind a sidecar (Istio)", func(list string) error {
		s.gateways = strings.Split(list, ",")
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if (len(s.proxies) == 0) == (s.files.Certificate == "") {
		return s, errors.New("want either -cert and -key, or -proxy-addresses behind a gateway")
	}
	return s, nil
}

func (s *settings) addProxies(list string) error {
	for text := range strings.SplitSeq(list, ",") {
		proxy, err := netip.ParsePrefix(text)
		if err != nil {
			return err
		}
		s.proxies = append(s.proxies, proxy)
	}
	return nil
}
