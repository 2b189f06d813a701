package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"
)

// settings are the values of the flags.
type settings struct {
	image, address                 string
	namespace                      string
	listenAddress, probes, metrics string
	leaderElect                    bool
	pollFresh, pollOtherwise       time.Duration
	proxies                        []netip.Prefix
	gateways                       []string
	fleetTokenFile                 string
}

func parse(args []string, stderr io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet("lifecyclemanager", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.image, "agent-image", "", "image of the agent (required)")
	flags.StringVar(&s.address, "events-address", "", "`host:port` of the listener or gateway, for runtimes (required)")
	flags.StringVar(&s.listenAddress, "events-bind-address", ":8082", "`address` of the listener")
	flags.StringVar(&s.namespace, "namespace", "kcp-system", "`namespace` of this operator and of all certificates")
	flags.StringVar(&s.metrics, "metrics-bind-address", ":8080", "`address` of /metrics and /fleet")
	flags.StringVar(&s.fleetTokenFile, "fleet-token-file", "", "`file` with the token for /fleet; empty: closed")
	flags.StringVar(&s.probes, "health-probe-bind-address", ":8081", "`address` of /healthz and /readyz")
	flags.BoolVar(&s.leaderElect, "leader-elect", true, "elect one replica that reconciles; all replicas listen")
	flags.DurationVar(&s.pollFresh, "poll-fresh", time.Hour, "`time` between two looks at a fresh runtime")
	flags.DurationVar(&s.pollOtherwise, "poll-otherwise", time.Minute, "`time` between two looks at any other runtime")
	flags.Func("proxy-addresses", "address `ranges` of the gateway, or of its sidecar, that ends TLS and sends "+
		"X-Forwarded-Client-Cert; empty for direct connections", s.addProxies)
	flags.Func("gateway-names", "SAN `names` of the gateway, behind a sidecar (Istio)", func(list string) error {
		s.gateways = strings.Split(list, ",")
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	err = s.validate(flags.Args())
	return s, err
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

func (s *settings) validate(rest []string) error {
	var wrong []error
	if len(rest) > 0 {
		wrong = append(wrong, fmt.Errorf("arguments %q are no flags", rest))
	}
	if s.image == "" {
		wrong = append(wrong, errors.New("-agent-image is empty, want the image of the agent"))
	}
	if s.host() == "" {
		wrong = append(wrong, fmt.Errorf("-events-address is %q, want host:port", s.address))
	}
	if len(s.gateways) > 0 && !s.behindGateway() {
		wrong = append(wrong, errors.New("-gateway-names needs -proxy-addresses"))
	}
	return errors.Join(wrong...)
}

// fleetToken returns the token for /fleet, empty if there is none. It reads the file each time, so
// that the token may change.
func (s *settings) fleetToken() string {
	token, _ := os.ReadFile(s.fleetTokenFile) // Without a file all requests are refused.
	return strings.TrimSpace(string(token))
}

// behindGateway reports whether a gateway ends TLS.
func (s *settings) behindGateway() bool { return len(s.proxies) > 0 }

// host returns the name of the listener or gateway in its certificate, empty if the address is
// wrong.
func (s *settings) host() string {
	host, _, _ := net.SplitHostPort(s.address) // A wrong address has no host.
	return host
}
