package controllerruntime

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

var errTwoAddresses = errors.New("addr and Options.Listener.Addr differ: want one of them")

// ComponentOptions are the optional settings of [RegisterListenerComponent]. The zero value serves plain
// HTTP, for a gateway that terminates TLS.
type ComponentOptions struct {
	// Listener has the settings of the listener. Native mTLS needs its TLS. With a Fleet, the source follows
	// it: runtimes that are no longer fresh are reconciled soon.
	Listener listener.Options
	// Source has the settings of the source.
	Source SourceOptions
}

// RegisterListenerComponent returns a listener for one component of an operator, to be passed to mgr.Add,
// and the source of its events, to be passed to WatchesRawSource. Nothing runs until the manager starts.
//
// Runtimes reach the listener at addr (host:port; "" is ":8082"). The name of the component is the
// [core.Manager] of their watches. peers identifies the sender of an event, verify decides whether it may
// trigger the event, and mapFunc turns the event into requests. It fails when one of them is missing, or
// when component is not a DNS-1123 label.
//
// It differs in two points from the function of that name in Kyma's listener. peers has no default, as a
// wrong one would let every sender in. mapFunc is here and not in an event handler, as its error decides
// whether the event is acknowledged.
//
// The listener runs on every replica of the operator. A replica whose controller does not run, because
// another one leads, answers that it is not ready; the sender then looks for the leader.
func RegisterListenerComponent[request comparable](
	addr, component string, peers listener.Peers, verify core.Verifier, mapFunc MapFunc[request], opts ComponentOptions,
) (*listener.Listener, *Source[request], error) {
	manager, err := core.ParseManager(component)
	if err != nil {
		return nil, nil, fmt.Errorf("listener component: %w", err)
	}

	if mapFunc == nil {
		return nil, nil, fmt.Errorf("listener component %s: %w", manager, errNoMapFunc)
	}

	if addr != "" && opts.Listener.Addr != "" && addr != opts.Listener.Addr {
		return nil, nil, fmt.Errorf("listener component %s: %w, have %q and %q", manager, errTwoAddresses, addr, opts.Listener.Addr)
	}

	source := NewSource(mapFunc, opts.Source)
	opts.Listener.Addr = cmp.Or(addr, opts.Listener.Addr)

	events, err := listener.New(peers, verify, map[core.Manager]core.Handler{manager: source}, opts.Listener)
	if err != nil {
		return nil, nil, fmt.Errorf("listener component %s: %w", manager, err)
	}

	if opts.Listener.Fleet != nil {
		source.Follow(opts.Listener.Fleet, manager)
	}

	return events, source, nil
}
