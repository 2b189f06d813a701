package controllerruntime

import (
	"errors"
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// errAddrTwice means that a component has two addresses.
var errAddrTwice = errors.New("the address is given twice: want it as addr only")

// ComponentOptions are the choices of [RegisterListenerComponent]. The zero value serves plain HTTP, for a gateway that
// ends TLS.
type ComponentOptions struct {
	// Listener are the choices of the listener. Its Addr stays empty. Native mTLS needs its TLS. With a Fleet, the source follows it:
	// runtimes that are not fresh any more are looked at soon.
	Listener listener.Options
	// Source are the choices of the source.
	Source SourceOptions
}

// RegisterListenerComponent returns a listener for one component of an operator, ready for mgr.Add, and the source of
// what it receives, ready for WatchesRawSource. Nothing runs until the manager starts.
//
// Runtimes reach the listener at addr (host:port; "" is ":8082") under the name of the component, which is the manager
// of their watches. peers finds out who sent an event, verify decides whether that peer may trigger what it asks for,
// and mapFunc makes requests of what it may.
//
// It is the function of that name that operators know from Kyma's listener, with two differences: peers is a choice of
// its own, as a default that does not fit would let everybody in, and mapFunc stands here rather than in an event
// handler, as its answer decides whether the event is acknowledged.
//
// The listener runs on every replica of the operator. Where the controller does not run, because another replica leads,
// it answers that it is not ready, and the sender looks for the leader.
//
// It fails when something required is missing, and when component is no DNS-1123 label.
func RegisterListenerComponent[request comparable](
	addr, component string, peers listener.PeerSource, verify core.Verifier, mapFunc MapFunc[request], opts ComponentOptions,
) (*listener.Listener, *Source[request], error) {
	manager, err := core.ParseManager(component)
	if err != nil {
		return nil, nil, fmt.Errorf("listener component: %w", err)
	}

	if mapFunc == nil {
		return nil, nil, fmt.Errorf("listener component %s: %w", manager, errNoMapFunc)
	}

	if opts.Listener.Addr != "" {
		return nil, nil, fmt.Errorf("listener component %s: %w, have %q and %q", manager, errAddrTwice, addr, opts.Listener.Addr)
	}

	source := NewSource(mapFunc, opts.Source)
	opts.Listener.Addr = addr

	events, err := listener.New(peers, verify, map[core.Manager]core.Handler{manager: source}, opts.Listener)
	if err != nil {
		return nil, nil, fmt.Errorf("listener component %s: %w", manager, err)
	}

	if opts.Listener.Fleet != nil {
		source.Follow(opts.Listener.Fleet, manager)
	}

	return events, source, nil
}
