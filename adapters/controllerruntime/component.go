package controllerruntime

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// errTwoAddresses prevents a listener on another address than the caller expects.
var errTwoAddresses = errors.New("addr and Options.Listener.Addr differ: want one of them")

// ComponentOptions are the optional settings of [RegisterListenerComponent]. The zero value serves
// plain HTTP, for a gateway that terminates TLS.
type ComponentOptions struct {
	// Listener has the settings of the listener. Its Addr must be empty or equal to addr. Native
	// mTLS needs its TLS, which [MutualTLS] sets. With a Fleet, the source follows it, as
	// [Source.Follow] does. The default of its Logger is ctrl.Log.
	Listener listener.Options
	// Source has the settings of the source.
	Source SourceOptions
}

// RegisterListenerComponent returns a listener for an operator, to be passed to mgr.Add, and the
// source of its events, to be passed to WatchesRawSource. Nothing runs until the controller manager
// starts.
//
// addr is host:port, and "" means ":8082". component is the name of the operator: the
// [core.Manager] of its watches. peers identifies the sender of an event. verify decides whether
// the sender may trigger the event. mapFunc turns the event into requests. It fails if one of them
// is missing, or component is not a DNS-1123 label.
//
// The function of that name in Kyma's listener differs in two points. Here peers has no default,
// because a wrong one would accept every sender. mapFunc is here and not in an event handler,
// because its error decides whether the event is acknowledged.
//
// The listener runs on every replica of the operator. A replica without a running controller, such
// as one that does not lead, answers that it is not ready. The sender then tries another replica.
func RegisterListenerComponent[request comparable](
	addr, component string, peers listener.Peers, verify core.Verifier, mapFunc MapFunc[request],
	opts ComponentOptions,
) (*listener.Listener, *Source[request], error) {
	manager, err := core.ParseManager(component)
	if err != nil {
		return nil, nil, fmt.Errorf("listener component: %w", err)
	}
	if mapFunc == nil {
		return nil, nil, fmt.Errorf("listener component %s: %w", manager, errNoMapFunc)
	}
	if addr != "" && opts.Listener.Addr != "" && addr != opts.Listener.Addr {
		return nil, nil, fmt.Errorf("listener component %s: %w, have %q and %q",
			manager, errTwoAddresses, addr, opts.Listener.Addr)
	}

	source := NewSource(mapFunc, opts.Source)
	opts.Listener.Addr = cmp.Or(addr, opts.Listener.Addr)
	opts.Listener.Logger = cmp.Or(opts.Listener.Logger, defaultLogger())
	events, err := listener.New(peers, verify, map[core.Manager]core.Handler{manager: source}, opts.Listener)
	if err != nil {
		return nil, nil, fmt.Errorf("listener component %s: %w", manager, err)
	}
	if opts.Listener.Fleet != nil {
		source.Follow(opts.Listener.Fleet, manager)
	}
	return events, source, nil
}
