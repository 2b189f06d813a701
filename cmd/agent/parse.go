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

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/connect"
	"github.com/runtime-watcher/runtime-watcher/internal/defaults"
)

// off is the value of a library's duration that turns a feature off, as 0 is the library's default.
const off = -1

// into returns a value that parse reads and field stores.
func into[T any](kind string, field *T, parse func(string) (T, error)) value {
	return value{kind, func(text string) error {
		v, err := parse(text)
		if err == nil {
			*field = v
		}
		return err
	}}
}

func text(kind string, field *string) value {
	return into(kind, field, func(text string) (string, error) { return text, nil })
}

// choice stores the value that is at the place of a word.
func choice[T any](field *T, words []string, values ...T) value {
	return into(strings.Join(words, ", "), field, func(text string) (v T, err error) {
		if i := slices.Index(words, text); i >= 0 {
			return values[i], nil
		}
		return v, unwanted(text, strings.Join(words, " or "))
	})
}

// file stores the path even if it cannot be opened, so that no other setting is reported because of
// it.
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

// anyManager stands for all managers that MANAGERS does not list.
const anyManager = "*"

// managers stores a list of names. With "*" in it, the webhook takes others, too.
func (c *config) managers() value {
	return value{"names", func(list string) (err error) {
		c.Managers, c.OtherManagers, err = parseManagers(list)
		return err
	}}
}

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

// parseList parses items between commas. Its error names every item that is wrong.
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

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, unwanted(text, "a duration above 0, such as 1m30s")
	}
	return d, nil
}

func parseDelay(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, unwanted(text, "a duration such as 500ms, or 0s")
	}
	return d, nil
}

// parseDelays reads rising durations. It returns an empty list, not nil, for 0s alone.
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
