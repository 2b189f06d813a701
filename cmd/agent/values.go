package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/runtime-watcher/runtime-watcher/agent"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/connect"
)

func into[T any](kind string, field *T, parse func(string) (T, error)) value {
	return value{kind, func(text string) error {
		v, err := parse(text)
		if err != nil {
			return err
		}

		*field = v
		return nil
	}}
}

func text(kind string, field *string) value {
	return into(kind, field, func(text string) (string, error) { return text, nil })
}

// choice stores the value at the index of the given word.
func choice[T any](field *T, words []string, values ...T) value {
	return into(strings.Join(words, ", "), field, func(text string) (v T, err error) {
		if i := slices.Index(words, text); i >= 0 {
			return values[i], nil
		}
		return v, unwanted(text, strings.Join(words, " or "))
	})
}

// file stores the path even if the file cannot be opened, so that this mistake causes no report
// about another setting.
func file(field *string) value {
	return value{"file", func(path string) error {
		*field = path
		return canOpen(path)
	}}
}

func duration(field *time.Duration) value { return into("duration", field, parseDuration) }

func durationOrOff(field *time.Duration) value {
	return into("duration", field, func(text string) (time.Duration, error) {
		d, err := parseDelay(text)
		if d == 0 {
			d = off
		}
		return d, err
	})
}

func unwanted(text, want string) error { return fmt.Errorf("%.64q, want %s", text, want) }

func canOpen(path string) error {
	file, err := os.Open(path) //nolint:gosec // The operator of the agent names it.
	if err != nil {
		return err
	}
	defer file.Close()

	if info, err := file.Stat(); err != nil || info.IsDir() {
		return unwanted(path, "a file")
	}
	return nil
}

func parsePort(text string) (int, error) {
	const maxPort = 1<<16 - 1
	number, err := strconv.Atoi(text)
	switch {
	case strings.HasPrefix(text, "tcp://"):
		// Kubernetes sets WEBHOOK_PORT in the pods of a namespace that has a Service "webhook".
		return 0, unwanted(text, "a port (Kubernetes sets this variable for a Service; "+
			"enableServiceLinks: false in the pod prevents it)")
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

func parseAddress(address string) (string, error) {
	_, err := connect.ParseAddress(address)
	return address, err
}

const anyManager = "*"

func parseManagers(list string) (listed []core.Manager, others bool, err error) {
	names, err := parseList(list, func(name string) (core.Manager, error) {
		if name == anyManager {
			return anyManager, nil
		}
		return core.ParseManager(name)
	})

	listed = slices.DeleteFunc(slices.Clone(names), func(name core.Manager) bool { return name == anyManager })
	if n := len(listed); err == nil && n > defaults.MaxManagers {
		err = fmt.Errorf("%d managers, want at most %d", n, defaults.MaxManagers)
	}

	return listed, len(listed) < len(names), err
}

func parseNames(list string) ([]string, error) {
	return parseList(list, func(name string) (string, error) {
		if name == "" {
			return "", unwanted(name, "a name between two commas")
		}
		return name, nil
	})
}

func parseList[T comparable](list string, parse func(string) (T, error)) ([]T, error) {
	var items []T
	var wrong []string
	for word := range strings.SplitSeq(list, ",") {
		item, err := parse(strings.TrimSpace(word))
		switch {
		case err != nil:
			wrong = append(wrong, err.Error())
		case slices.Contains(items, item):
			wrong = append(wrong, fmt.Sprintf("%q is there twice, want each name once", word))
		default:
			items = append(items, item)
		}
	}

	if wrong != nil {
		return nil, errors.New(strings.Join(wrong, "; "))
	}
	return items, nil
}

func parseAnnotation(name string) (string, error) {
	if core.ValidateOwnerAnnotation(name) != nil {
		return "", unwanted(name, "[<domain>/]<name>")
	}
	return name, nil
}

// parseEndpoint reads a URL, or the name of a Service with its port.
func parseEndpoint(text string) (own agent.OwnConfiguration, err error) {
	if strings.HasPrefix(text, "https://") {
		own.URL = text
		return own, nil
	}

	name, port, hasPort := strings.Cut(text, ":")
	own.Service, err = parseLease(name)
	if err != nil {
		return own, unwanted(text, "<namespace>/<name>[:<port>], or https://<host>[:<port>]")
	}

	if hasPort {
		number, err := parsePort(port)
		if err != nil {
			return own, err
		}
		own.ServicePort = int32(number) //nolint:gosec // At most 65535.
	}
	return own, nil
}

func parseLease(text string) (types.NamespacedName, error) {
	namespace, name, found := strings.Cut(text, "/")
	if !found || validation.IsDNS1123Label(namespace) != nil || validation.IsDNS1123Subdomain(name) != nil {
		return types.NamespacedName{}, unwanted(text, "<namespace>/<name>")
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

var (
	parseCount    = atLeast(1, strconv.Atoi, "a number above 0")
	parseDuration = atLeast(1, time.ParseDuration, "a duration above 0, such as 1m30s")
	parseDelay    = atLeast(0, time.ParseDuration, "a duration such as 500ms, or 0s")
)

func atLeast[T int | time.Duration](
	least T, parse func(string) (T, error), want string,
) func(string) (T, error) {
	return func(text string) (T, error) {
		v, err := parse(text)
		if err != nil || v < least {
			return 0, unwanted(text, want)
		}
		return v, nil
	}
}

// parseDelays reads increasing durations. It returns an empty list, not nil, for 0s alone.
func parseDelays(list string) ([]time.Duration, error) {
	delays, err := parseList(list, parseDelay)
	switch {
	case err != nil:
		return nil, err
	case len(delays) == 1 && delays[0] == 0:
		return []time.Duration{}, nil
	case !slices.IsSorted(delays) || delays[0] == 0:
		return nil, unwanted(list, "rising durations such as 3s,35s, or 0s")
	default:
		return delays, nil
	}
}

func parseLevel(text string) (slog.Level, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(text)); err != nil {
		return 0, unwanted(text, "debug, info, warn or error")
	}
	return level, nil
}

func versions() string {
	names := make([]string, 0, len(contract.Versions()))
	for _, v := range contract.Versions() {
		names = append(names, string(v))
	}
	return strings.Join(names, ", ")
}
