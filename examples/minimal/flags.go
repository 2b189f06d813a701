package main

import (
	"errors"
	"flag"
	"io"
	"net/netip"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// settings are the values of the flags.
type settings struct {
	addr     string
	manager  core.Manager
	files    keys.Paths
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
