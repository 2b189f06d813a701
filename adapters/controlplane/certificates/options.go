package certificates

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
)

const day = 24 * time.Hour

// The defaults of [Options].
const (
	DefaultCADuration      = 365 * day
	DefaultRotateCABefore  = 120 * day
	DefaultSwitchBefore    = 14 * day
	DefaultDuration        = 90 * day
	DefaultRenewBefore     = 30 * day
	DefaultPropagation     = 5 * time.Minute
	DefaultIssuingAtOnce   = 50
	DefaultService         = "runtime-watcher"
	DefaultRuntimeNS       = "runtime-watcher"
	defaultClusterDomain   = "cluster.local"
	shortest               = time.Hour       // that cert-manager accepts
	shortestRenewal        = 5 * time.Minute // that cert-manager accepts
	pollInterval           = 2 * time.Second
	longestRequeue         = 5 * time.Minute // Annotations ask for something, and nobody has to watch them.
	failedIssuanceInterval = time.Minute
)

// Options are the optional settings of [Certificates]. The zero value is the documented default.
type Options struct {
	// CAIssuer signs our CAs, which are then intermediate ones of its PKI. Default: a self-signed Issuer of our own.
	CAIssuer cmmeta.IssuerReference

	// CADuration is the life of a CA. Default [DefaultCADuration].
	CADuration time.Duration
	// RotateCABefore is the rest of a CA's life from which on it is replaced. It is at least Duration, so that no certificate
	// outlives its CA. Default [DefaultRotateCABefore].
	RotateCABefore time.Duration
	// SwitchBefore is the rest of the old CA's life from which on the server certificate switches whoever has not confirmed the new one: to
	// wait would cut off all the others, too. Default [DefaultSwitchBefore].
	SwitchBefore time.Duration

	// Duration is the life of all other certificates, RenewBefore the rest of it from which on cert-manager renews one, with a new
	// key. Defaults [DefaultDuration] and [DefaultRenewBefore].
	Duration    time.Duration
	RenewBefore time.Duration

	// Propagation is how long a changed Secret may take to reach every listener or gateway that mounts it. Default
	// [DefaultPropagation].
	Propagation time.Duration
	// IssuingAtOnce bounds how many certificates of runtimes a rotation has issued at the same time. Default [DefaultIssuingAtOnce].
	IssuingAtOnce int

	// Service and RuntimeNamespace are those of the agent in the runtimes: its certificate is for the names of that service, too.
	// Defaults [DefaultService] and [DefaultRuntimeNS].
	Service          string
	RuntimeNamespace string

	// Recorder gets an Event about the clients' Issuer when a rotation waits for runtimes. Default: none.
	Recorder events.EventRecorder
	// Now is the clock. Default [time.Now].
	Now func() time.Time
	// Logger gets a line for each step of a rotation. Default: discarded.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	o.CADuration = cmp.Or(o.CADuration, DefaultCADuration)
	o.RotateCABefore = cmp.Or(o.RotateCABefore, DefaultRotateCABefore)
	o.SwitchBefore = cmp.Or(o.SwitchBefore, DefaultSwitchBefore)
	o.Duration = cmp.Or(o.Duration, DefaultDuration)
	o.RenewBefore = cmp.Or(o.RenewBefore, DefaultRenewBefore)
	o.Propagation = cmp.Or(o.Propagation, DefaultPropagation)
	o.IssuingAtOnce = cmp.Or(o.IssuingAtOnce, DefaultIssuingAtOnce)
	o.Service = cmp.Or(o.Service, DefaultService)
	o.RuntimeNamespace = cmp.Or(o.RuntimeNamespace, DefaultRuntimeNS)

	if o.Now == nil {
		o.Now = time.Now
	}

	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}

	return o
}

func (o Options) validate() error {
	var wrong []error

	check := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Errorf("certificates: options "+format, args...))
		}
	}

	check(o.Duration >= shortest, "Duration %v: want at least %v", o.Duration, shortest)
	check(o.RenewBefore >= shortestRenewal && o.RenewBefore < o.Duration,
		"RenewBefore %v: want %v to less than Duration %v", o.RenewBefore, shortestRenewal, o.Duration)
	check(o.RotateCABefore >= o.Duration && o.RotateCABefore < o.CADuration,
		"RotateCABefore %v: want Duration %v to less than CADuration %v", o.RotateCABefore, o.Duration, o.CADuration)
	check(o.SwitchBefore > 0 && o.SwitchBefore < o.RotateCABefore,
		"SwitchBefore %v: want more than 0 and less than RotateCABefore %v", o.SwitchBefore, o.RotateCABefore)
	check(o.Propagation > 0, "Propagation %v: want more than 0", o.Propagation)
	check(o.IssuingAtOnce > 0, "IssuingAtOnce %d: want more than 0", o.IssuingAtOnce)

	for _, name := range o.serviceNames() {
		err := checkDNSName(name)
		check(err == nil, "Service and RuntimeNamespace: %v", err)
	}

	return errors.Join(wrong...)
}

// serviceNames are what API servers and others in the runtime call the agent's service.
func (o Options) serviceNames() []string {
	host := o.Service + "." + o.RuntimeNamespace

	return []string{host, host + ".svc", host + ".svc." + defaultClusterDomain}
}
