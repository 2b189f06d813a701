package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// known contains the listeners of all controller managers in this process. A controller manager
// cannot be asked for them, and replaces a readiness check by another of the same name without a
// word.
var known listeners

var errTwoOfOneName = errors.New("this controller manager already has a listener with this name: " +
	"call SourceFor again for another controller, or set Name for a second listener")

// listeners contains the listeners of each controller manager, which its channel Elected
// identifies.
type listeners struct {
	mu sync.Mutex
	of map[<-chan struct{}][]*Listener
}

// addListener refuses a listener that conflicts with another listener of its controller manager.
func (k *listeners) addListener(l *Listener) error {
	if l.elected == nil {
		return nil
	}

	k.mu.Lock()
	defer k.mu.Unlock()

	for _, other := range k.of[l.elected] {
		if other.config.Name == l.config.Name {
			return errTwoOfOneName
		}
		if haveOneSocket(&other.config, &l.config) {
			return fmt.Errorf("listener %q already has address %q: call SourceFor again for another controller, "+
				"or set another Addr", other.config.Name, other.config.Addr)
		}
	}

	if k.of == nil {
		k.of = make(map[<-chan struct{}][]*Listener)
	}
	k.of[l.elected] = append(k.of[l.elected], l)
	return nil
}

// removeListener forgets a listener that has stopped, or was not added.
func (k *listeners) removeListener(l *Listener) {
	k.mu.Lock()
	defer k.mu.Unlock()

	left := slices.DeleteFunc(k.of[l.elected], func(other *Listener) bool { return other == l })
	if len(left) == 0 {
		delete(k.of, l.elected)
		return
	}
	k.of[l.elected] = left
}

// deliversElsewhere returns the name of another listener that delivers the resyncs of the same
// fleet to this manager, and "" if there is none.
func (k *listeners) deliversElsewhere(l *Listener, name core.Manager) string {
	k.mu.Lock()
	defer k.mu.Unlock()

	for _, other := range k.of[l.elected] {
		isSameFleet := l.config.Fleet != nil && other.config.Fleet == l.config.Fleet
		if other != l && isSameFleet && other.servesManager(name) {
			return other.config.Name
		}
	}
	return ""
}

// haveOneSocket reports whether two listeners would bind the same port of one address. An open
// socket, and a port that the system chooses, belong to one listener only.
func haveOneSocket(a, b *ListenerConfig) bool {
	if a.Options.Listener != nil || b.Options.Listener != nil {
		return false
	}

	hostA, portA := splitAddr(a.Addr)
	hostB, portB := splitAddr(b.Addr)
	if portA == 0 || portA != portB {
		return false
	}
	return hostA == hostB || isEveryAddress(hostA) || isEveryAddress(hostB)
}

// splitAddr returns a host and a port that are equal for spellings of one address. The port is 0
// for an address that cannot be parsed, which is refused elsewhere.
func splitAddr(addr string) (string, int) {
	if addr == "" {
		addr = ":8082"
	}

	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0
	}

	port, err := net.DefaultResolver.LookupPort(context.Background(), "tcp", service)
	if err != nil {
		return "", 0
	}

	if host == "localhost" {
		return "127.0.0.1", port
	}

	ip, err := netip.ParseAddr(host)
	if err != nil { // Such as a name, or no host.
		return host, port
	}

	return ip.Unmap().String(), port
}

func isEveryAddress(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
