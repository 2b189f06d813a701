// Package simulation runs agents, operators and the path between them in one process, in virtual
// time and over an in-memory network, with faults drawn from a seed.
//
// All parts of this repository are real: webhook handler, filter, outbox, forwarder with TLS,
// listener, verifier, fleet, source and workqueue. The network, the API server with its etcd, the
// gateway, the election of a leader, and the operator's reconcile are models. Package oracle checks
// the history only against the guarantees. See docs/maintainers/tests.md.
package simulation
