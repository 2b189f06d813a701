package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
)

// exitUsage is the exit code for settings that are wrong, as of flag.ExitOnError.
const exitUsage = 2

// errUsage means that the settings are wrong. What wraps it names all that is.
var errUsage = errors.New("wrong settings (see -help)")

func exitCode(err error) int {
	if errors.Is(err, errUsage) {
		return exitUsage
	}

	return 1
}

// config is what the settings say.
type config struct {
	addr     string
	managers []core.Manager
	files    httpmtls.Paths
	// gateways are the address ranges that X-Forwarded-Client-Cert is believed from. Without any, runtimes connect straight.
	gateways []netip.Prefix
}

// settings are flags, as they were written.
type settings struct {
	flags                               *flag.FlagSet
	addr, managers, ca, cert, key, xfcc string
}

// newSettings names each flag and the environment variable that it falls back to.
func newSettings(getenv func(string) string) *settings {
	s := &settings{flags: flag.NewFlagSet("minimal", flag.ContinueOnError)}
	s.flags.SetOutput(io.Discard)
	s.flags.StringVar(&s.addr, "addr", cmp.Or(getenv("ADDR"), ":8082"), "`address` to listen on; port 0 takes a free one (ADDR)")
	s.flags.StringVar(&s.managers, "manager", getenv("MANAGERS"), "`managers` to receive events for, separated by commas (MANAGERS)")
	s.flags.StringVar(&s.ca, "ca", getenv("CA_CERT"), "`file` with the CAs of the runtimes' certificates (CA_CERT)")
	s.flags.StringVar(&s.cert, "cert", getenv("TLS_CERT"), "`file` with the certificate of this server (TLS_CERT)")
	s.flags.StringVar(&s.key, "key", getenv("TLS_KEY"), "`file` with its private key (TLS_KEY)")
	s.flags.StringVar(&s.xfcc, "xfcc-from", getenv("XFCC_FROM"),
		"address `ranges` of the gateway whose X-Forwarded-Client-Cert is believed, separated by commas; plain HTTP then (XFCC_FROM)")

	return s
}

// help returns what there is to set.
func (s *settings) help() string {
	var text strings.Builder

	text.WriteString("Prints the events that runtimes send, one line of JSON each.\n\n")
	s.flags.SetOutput(&text)
	s.flags.PrintDefaults()
	s.flags.SetOutput(io.Discard)

	return text.String()
}

// parse returns what args say, or flag.ErrHelp, or an error that names everything that is wrong.
func (s *settings) parse(args []string) (config, error) {
	wrong := s.parseFlags(args)
	if errors.Is(wrong, flag.ErrHelp) {
		return config{}, flag.ErrHelp
	}

	managers, managersErr := parseList(s.managers, core.ParseManager)
	gateways, gatewaysErr := parseList(s.xfcc, netip.ParsePrefix)
	c := config{
		addr:     s.addr,
		managers: managers,
		gateways: gateways,
		files:    httpmtls.Paths{CA: s.ca, Certificate: s.cert, Key: s.key},
	}

	if err := errors.Join(wrong, inFlag("manager", managersErr), inFlag("xfcc-from", gatewaysErr), s.missing()); err != nil {
		return config{}, fmt.Errorf("%w:\n%w", errUsage, err)
	}

	return c, nil
}

// parseFlags goes on after a mistake, where flag.Parse stops.
func (s *settings) parseFlags(args []string) error {
	var wrong []error

	for len(args) > 0 {
		err := s.flags.Parse(args)
		args = s.flags.Args()

		switch {
		case err != nil:
			wrong = append(wrong, err)
		case len(args) > 0:
			wrong = append(wrong, fmt.Errorf("argument %q is no flag", args[0]))
			args = args[1:]
		}
	}

	return errors.Join(wrong...)
}

// missing names what is needed and was not given, and what does not go together.
func (s *settings) missing() error {
	var wrong []error

	if _, _, err := net.SplitHostPort(s.addr); err != nil {
		wrong = append(wrong, fmt.Errorf("-addr: %w, want host:port or :port", err))
	}

	if s.managers == "" {
		wrong = append(wrong, errors.New("-manager is empty, want at least one manager"))
	}

	if s.ca == "" {
		wrong = append(wrong, errors.New("-ca is empty, want the file with the CAs of the runtimes"))
	}

	switch {
	case s.xfcc != "" && (s.cert != "" || s.key != ""):
		wrong = append(wrong, errors.New("-xfcc-from and -cert or -key are given, want one way: behind a gateway, or mTLS"))
	case s.xfcc == "" && (s.cert == "" || s.key == ""):
		wrong = append(wrong, errors.New("-cert or -key is empty, want both for mTLS, or -xfcc-from behind a gateway"))
	}

	return errors.Join(wrong...)
}

// parseList parses what is separated by commas. The error names every item that is wrong.
func parseList[T any](list string, parse func(string) (T, error)) ([]T, error) {
	if list == "" {
		return nil, nil
	}

	var (
		items []T
		wrong []error
	)

	for word := range strings.SplitSeq(list, ",") {
		item, err := parse(strings.TrimSpace(word))
		items, wrong = append(items, item), append(wrong, err)
	}

	return items, errors.Join(wrong...)
}

func inFlag(name string, err error) error {
	if err == nil {
		return nil
	}

	return fmt.Errorf("-%s: %w", name, err)
}
