// Package paths measures events from the forwarder of an agent to the listener of an operator, with
// TLS and loopback, in one process. See docs/maintainers/measurements.md.
package paths
