package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
)

type duration = time.Duration

// maxManagers is the default bound of the outbox and of the metrics.
const maxManagers = 100

// off is what libraries take for a duration that is none, as 0 is their default.
const off = -1

// parsed returns a setter of a field with a parser of its own.
func parsed[T any](field func(*config) *T, parse func(string) (T, error)) func(*config, string) error {
	return func(c *config, text string) error {
		v, err := parse(text)
		if err == nil {
			*field(c) = v
		}

		return err
	}
}

func text(field func(*config) *string) func(*config, string) error {
	return parsed(field, func(text string) (string, error) { return text, nil })
}

func port(field func(*config) *int) func(*config, string) error { return parsed(field, parsePort) }

func durationOrOff(field func(*config) *duration) func(*config, string) error {
	return parsed(field, func(text string) (duration, error) {
		d, err := parseDelay(text)
		if d == 0 {
			d = off
		}

		return d, err
	})
}

func protocolOf(c *config) *httpmtls.Protocol { return &c.protocol }
func managersOf(c *config) *[]core.Manager    { return &c.managers }
func logLevelOf(c *config) *slog.Level        { return &c.logLevel }

// unwanted says what a value is and what it should be.
func unwanted(text, want string) error { return fmt.Errorf("%.64q, want %s", text, want) }

func parsePort(text string) (int, error) {
	const maxPort = 1<<16 - 1

	number, err := strconv.Atoi(text)

	switch {
	case strings.HasPrefix(text, "tcp://"):
		// Kubernetes tells the pods of a namespace of a service "webhook" in WEBHOOK_PORT.
		return 0, unwanted(text, "a port: set it, or enableServiceLinks: false in the pod, as a service of that name is in the way")
	case err != nil, number < 0, number > maxPort:
		return 0, unwanted(text, "a port from 0 to 65535")
	default:
		return number, nil
	}
}

func parseIP(text string) (string, error) {
	if _, err := netip.ParseAddr(text); err != nil {
		return "", unwanted(text, "an IP address")
	}

	return text, nil
}

// unread is key material before it is read.
type unread struct{}

var errUnread = errors.New("not read yet")

// Material always fails.
func (unread) Material() (*httpmtls.Material, error) { return nil, errUnread }

// parseAddress asks a forwarder without key material, so that there is one opinion only on what an address is.
func parseAddress(address string) (string, error) {
	_, err := httpmtls.NewForwarder(unread{}, address, defaultContract, httpmtls.Options{})
	if errors.Is(err, errUnread) {
		return address, nil
	}

	return "", err //nolint:wrapcheck // It names the address, and the caller the setting.
}

func parseProtocol(text string) (httpmtls.Protocol, error) {
	switch text {
	case "http1":
		return httpmtls.HTTP1, nil
	case "http2":
		return httpmtls.HTTP2, nil
	default:
		return "", unwanted(text, "http1 or http2")
	}
}

// parseManagers names every item that is wrong.
func parseManagers(list string) ([]core.Manager, error) {
	var (
		managers []core.Manager
		wrong    []error
	)

	for word := range strings.SplitSeq(list, ",") {
		manager, err := core.ParseManager(strings.TrimSpace(word))
		if err == nil && slices.Contains(managers, manager) {
			err = fmt.Errorf("%q is named twice, want each manager once", word)
		}

		managers, wrong = append(managers, manager), append(wrong, err)
	}

	if n := len(managers); n > maxManagers {
		wrong = append(wrong, fmt.Errorf("%d managers, want at most %d", n, maxManagers))
	}

	return managers, errors.Join(wrong...)
}

func parseFallback(text string) (contract.Version, error) {
	if text != string(contract.V2) {
		return "", unwanted(text, string(contract.V2))
	}

	return contract.V2, nil
}

func parseLease(text string) (types.NamespacedName, error) {
	namespace, name, found := strings.Cut(text, "/")
	if !found || validation.IsDNS1123Label(namespace) != nil || validation.IsDNS1123Subdomain(name) != nil {
		return types.NamespacedName{}, unwanted(text, "<namespace>/<name>")
	}

	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

func parseCount(text string) (int, error) {
	number, err := strconv.Atoi(text)
	if err != nil || number <= 0 {
		return 0, unwanted(text, "a number above 0")
	}

	return number, nil
}

func parseDuration(text string) (duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, unwanted(text, "a duration above 0, as in 1m30s")
	}

	return d, nil
}

func parseDelay(text string) (duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, unwanted(text, "a duration, as in 500ms, or 0s")
	}

	return d, nil
}

func parseLevel(text string) (slog.Level, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(text)); err != nil {
		return 0, unwanted(text, "debug, info, warn or error")
	}

	return level, nil
}

// versions lists the contracts there are.
func versions() string {
	names := make([]string, 0, len(contract.Versions()))
	for _, v := range contract.Versions() {
		names = append(names, string(v))
	}

	return strings.Join(names, ", ")
}

// parseDelays reads rising durations, separated by commas; 0s alone is none.
func parseDelays(text string) ([]duration, error) {
	delays := []duration{}

	for part := range strings.SplitSeq(text, ",") {
		delay, err := parseDelay(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}

		delays = append(delays, delay)
	}

	if len(delays) == 1 && delays[0] == 0 {
		return []duration{}, nil
	}

	if !slices.IsSorted(delays) || delays[0] == 0 {
		return nil, fmt.Errorf("want rising durations such as 3s,35s, or 0s, have %.40q", text)
	}

	return delays, nil
}
