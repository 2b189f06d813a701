package controllerruntime

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// RegisterListenerComponent returns a listener and its only source. The operator adds both to its
// controller manager. Pass the listener to mgr.Add, its Ready to AddReadyzCheck, and the source to
// WatchesRawSource. Nothing runs until the controller manager starts. [AddListener] and [SourceFor]
// need fewer steps.
//
// component is the name of the operator, which is also the [core.Manager] of its watches. The
// function mapFunc maps an event to requests. RegisterListenerComponent fails for the reasons for
// which [AddListener] and [SourceFor] fail. Set opts.Elected to mgr.Elected(). Otherwise the log
// cannot distinguish a source that no controller has started from a replica that does not lead.
//
// The function with the same name in Kyma's listener differs in two points. Here the senders have
// no default, because a wrong default would accept every sender. mapFunc is a parameter here
// instead of an event handler, because its error decides whether the event is acknowledged.
// Use [ToChannel] in an operator that keeps its channel.
func RegisterListenerComponent[request comparable](
	config ListenerConfig, component core.Manager, mapFunc MapFunc[request], opts SourceOptions,
) (*Listener, *Source[request], error) {
	events, err := newListener(config, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("listener component %q: %w", component, err)
	}
	source, err := SourceFor(events, component, mapFunc, opts)
	if err != nil {
		return nil, nil, fmt.Errorf("listener component %q: %w", component, err)
	}

	time.AfterFunc(notAdded, func() { events.warnUnused(component, source) })
	return events, source, nil
}

// notAdded is the time after which a component without any started part is reported.
const notAdded = time.Minute

// warnUnused reports a component that was made and thrown away. If one part has started, that part
// reports the other.
func (l *Listener) warnUnused(component core.Manager, source attachable) {
	if l.served.Load() != nil || source.hasStarted() {
		return
	}
	l.config.Logger.Warn("neither the listener nor the source of this component has started within a minute: "+
		"pass the listener to mgr.Add, and the source to WatchesRawSource of a controller",
		slog.String("listener", l.config.Name), slog.String("manager", string(component)))
}
