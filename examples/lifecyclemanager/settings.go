package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// settings are what the flags say.
type settings struct {
	image, address           string
	namespace                string
	listen, probes, metrics  string
	leaderElect              bool
	pollFresh, pollOtherwise time.Duration
	// gateways are the address ranges of the gateway that ends TLS. Without any, runtimes connect straight to the operator.
	gateways []netip.Prefix
}

func parse(args []string, stderr io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet("lifecyclemanager", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.image, "agent-image", "", "image of the agent (required)")
	flags.StringVar(&s.address, "events-address", "", "`host:port` by which runtimes reach the listener or gateway (required)")
	flags.StringVar(&s.listen, "events-bind-address", ":8082", "address of the listener")
	flags.StringVar(&s.namespace, "namespace", "kcp-system", "namespace of this operator: its lease and all certificates are there")
	flags.StringVar(&s.metrics, "metrics-bind-address", ":8080", "address of /metrics and /fleet")
	flags.StringVar(&s.probes, "health-probe-bind-address", ":8081", "address of /healthz and /readyz")
	flags.BoolVar(&s.leaderElect, "leader-elect", true, "one replica leads, with a lease; false for a single one on a laptop")
	flags.DurationVar(&s.pollFresh, "poll-fresh", time.Hour, "time between two looks at a runtime of which each change would be heard")
	flags.DurationVar(&s.pollOtherwise, "poll-otherwise", time.Minute, "time between two looks at any other runtime")
	flags.Func("gateway", "address `range` of the gateway that ends TLS, several times if there are more", func(text string) error {
		prefix, err := netip.ParsePrefix(text)
		s.gateways = append(s.gateways, prefix)

		return err
	})

	if err := flags.Parse(args); err != nil {
		return s, err
	}

	return s, s.validate(flags.Args())
}

func (s settings) validate(rest []string) error {
	var wrong []error

	if len(rest) > 0 {
		wrong = append(wrong, fmt.Errorf("want flags only, have %q", rest))
	}

	if s.image == "" {
		wrong = append(wrong, errors.New("-agent-image is empty, want the image of the agent"))
	}

	if s.host() == "" {
		wrong = append(wrong, fmt.Errorf("-events-address is %q, want host:port", s.address))
	}

	return errors.Join(wrong...)
}

// host is the name that the certificate of the listener or gateway is for.
func (s settings) host() string {
	host, _, _ := net.SplitHostPort(s.address) // Or it is empty, which validate tells.

	return host
}
