package httpmtls

import (
	"net"
	"time"
)

// Error is the type of the errors of a [Forwarder], for the tests of its fields.
type Error = requestError

// PingAfter returns the options with another silence before a ping.
func PingAfter(opts Options, silence time.Duration) Options {
	opts.pingAfter = silence
	return opts
}

// RetryWait returns the options with another wait before the first short retry.
func RetryWait(opts Options, wait time.Duration) Options {
	opts.retryWait = wait
	return opts
}

// LeaveAfter returns the options with another time of refusals before new connections.
func LeaveAfter(opts Options, refused time.Duration) Options {
	opts.leaveAfter = refused
	return opts
}

// Resolver returns the options with another resolver of names.
func Resolver(opts Options, resolver *net.Resolver) Options {
	opts.resolver = resolver
	return opts
}
