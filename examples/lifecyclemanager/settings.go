package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// settings are the values of the flags.
type settings struct {
	// image and agentSettings configure the agents in the runtimes, which send events to address.
	image, address string
	agentSettings  map[string]string

	// namespace contains this operator, the Kymas and all certificates.
	namespace                      string
	listenAddress, probes, metrics string
	leaderElect                    bool

	// service directs events to the leader. This replica is podName at podIP. An empty podIP means
	// that there is no such Service.
	service, podIP, podName string

	// The operator polls a runtime after one of these times, if no event comes before.
	pollFresh, pollOtherwise time.Duration
	// catalogSpread spreads the reconciles after a change of the catalog.
	catalogSpread time.Duration

	// proxies and gateways are the addresses and names of a gateway that ends TLS, and
	// listenerSecret contains the key material of the listener or gateway.
	proxies        []netip.Prefix
	gateways       []string
	listenerSecret types.NamespacedName
}

func parse(args []string, stderr io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet("lifecyclemanager", flag.ContinueOnError)
	flags.SetOutput(stderr)

	// The agents in the runtimes, and where they send events to.
	s.agentSettings = make(map[string]string)
	flags.StringVar(&s.image, "agent-image", "", "image of the agent (required)")
	flags.Func("agent-setting", "environment variable `NAME=value` of the agents; may be repeated", s.addAgentSetting)
	flags.StringVar(&s.address, "events-address", "", "`host:port` of the listener or gateway, for runtimes (required)")

	// This operator.
	flags.StringVar(&s.listenAddress, "events-bind-address", ":8082", "`address` of the listener")
	flags.StringVar(&s.namespace, "namespace", "kcp-system", "`namespace` of this operator and of all certificates")
	flags.StringVar(&s.metrics, "metrics-bind-address", ":8443", "`address` of /metrics and /fleet (HTTPS)")
	flags.StringVar(&s.probes, "health-probe-bind-address", ":8081", "`address` of /healthz and /readyz")
	flags.BoolVar(&s.leaderElect, "leader-elect", true, "elect one replica that reconciles")

	// The Service that routes events to the leader.
	flags.StringVar(&s.service, "events-service", "lifecycle-manager-events",
		"`name` of the Service that leads events to the replica that reconciles")
	flags.StringVar(&s.podIP, "pod-ip", "", "`address` of this replica for that Service; empty: there is none")
	flags.StringVar(&s.podName, "pod-name", "", "`name` of the pod of this replica")

	// How often each runtime is reconciled without an event.
	flags.DurationVar(&s.pollFresh, "poll-fresh", time.Hour, "`time` between two reconciles of a fresh runtime")
	flags.DurationVar(&s.pollOtherwise, "poll-otherwise", time.Minute,
		"`time` between two reconciles of any other runtime")
	flags.DurationVar(&s.catalogSpread, "catalog-spread", time.Minute,
		"`time` over which the reconciles of all Kymas are spread when a ModuleTemplate changes")

	// TLS ends in this operator, or in a gateway in front of it.
	flags.Func("proxy-addresses", "address `ranges` of the gateway, or of its sidecar, that ends TLS and sends "+
		"X-Forwarded-Client-Cert; empty for direct connections", s.addProxies)
	flags.Func("gateway-names", "SAN `names` of the gateway, behind a sidecar (Istio)", func(list string) error {
		s.gateways = strings.Split(list, ",")
		return nil
	})
	flags.Func("listener-secret", "`namespace/name` of the Secret with the key material of the listener or gateway; "+
		"empty: watcher-listener in the namespace of this operator", s.setListenerSecret)

	if err := flags.Parse(args); err != nil {
		return s, err
	}

	err = s.validate(flags.Args())
	return s, err
}

func (s *settings) addAgentSetting(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		return errors.New("want NAME=value")
	}

	s.agentSettings[name] = value
	return nil
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

func (s *settings) setListenerSecret(text string) error {
	namespace, name, _ := strings.Cut(text, "/")
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return errors.New("want namespace/name")
	}

	s.listenerSecret = types.NamespacedName{Namespace: namespace, Name: name}
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

	if s.catalogSpread < 0 {
		wrong = append(wrong, fmt.Errorf("-catalog-spread is %s, want 0 or more", s.catalogSpread))
	}

	if s.listenerHost() == "" {
		wrong = append(wrong, fmt.Errorf("-events-address is %q, want host:port", s.address))
	}

	if s.podIP != "" && s.listenerPort() == 0 {
		wrong = append(wrong, fmt.Errorf("-pod-ip needs a port in -events-bind-address, have %q", s.listenAddress))
	}

	if len(s.gateways) > 0 && !s.behindGateway() {
		wrong = append(wrong, errors.New("-gateway-names needs -proxy-addresses"))
	}

	return errors.Join(wrong...)
}

// behindGateway reports whether a gateway ends TLS.
func (s *settings) behindGateway() bool { return len(s.proxies) > 0 }

// listenerHost returns the name of the listener or gateway in its certificate, or "" if the address
// is wrong.
func (s *settings) listenerHost() string {
	host, _, _ := net.SplitHostPort(s.address) // A wrong address has no host.
	return host
}

// listenerPort returns the port of the listener, 0 if the address has none.
func (s *settings) listenerPort() int32 {
	_, text, _ := net.SplitHostPort(s.listenAddress)
	port, _ := strconv.ParseUint(text, 10, 16)
	return int32(port)
}
