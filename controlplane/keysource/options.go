package keysource

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"
)

const defaultPoll = 5 * time.Second

// Options are the optional settings of a [Secret]. The zero value is the documented default.
type Options struct {
	// Poll is the time between two readings of the Secret. Without any key material it is at most
	// 1 s. Default: 5 s.
	Poll time.Duration
	// Reloaded is called when new key material is in use, with its validity. It must return at
	// once. Default: no call.
	Reloaded func(notBefore, notAfter time.Time)
	// Refused is called once per distinct failure, with its [keys.Problem].
	// A Secret that does not exist yet is no failure. It must return at once. Default: no call.
	Refused func(problem string)
	// Logger gets a line for each reload and each distinct failure. Default: discarded.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	o.Poll = cmp.Or(o.Poll, defaultPoll)
	if o.Reloaded == nil {
		o.Reloaded = func(_, _ time.Time) {}
	}
	if o.Refused == nil {
		o.Refused = func(string) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o Options) validate() error {
	if o.Poll < 0 {
		return fmt.Errorf("keysource: option Poll is %v, want more than 0", o.Poll)
	}
	return nil
}
