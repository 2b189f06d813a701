package listener

// perObserveSlot is the number of slots for which there is one more slot for requests that are only
// observed.
const perObserveSlot = 8

// takeSlot takes a slot for the handler, if there is one.
func (l *Listener) takeSlot() bool {
	select {
	case l.slots <- struct{}{}:
		l.countInFlight(1)
		return true
	default:
		return false
	}
}

func (l *Listener) releaseSlot() {
	l.countInFlight(-1)
	<-l.slots
}

func (l *Listener) countInFlight(delta int) {
	if l.opts.Hooks.InFlight != nil {
		l.opts.Hooks.InFlight(delta)
	}
}

// takeRelaySlot takes a slot for a relayed request, and returns the function that gives it back. It
// returns nil if there is none. There are more of these slots than a leader has for events, so that
// it still gets heartbeats while it refuses events.
func (l *Listener) takeRelaySlot() (release func()) {
	if l.takeSlot() {
		return l.releaseSlot
	}
	select {
	case l.observeSlots <- struct{}{}:
		return func() { <-l.observeSlots }
	default:
		return nil
	}
}
