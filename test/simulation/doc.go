// Package simulation runs agents, operators and the path between them in one process, in virtual
// time and over an in-memory network, with faults drawn from a seed.
//
// Everything of this repository is real: webhook handler, filter, outbox, forwarder with TLS,
// listener, verifier, fleet, source and workqueue. Models are the network, the API server with its
// etcd, the gateway, the election of a leader, and the operator's reconcile. Package oracle checks
// the history against the guarantees alone. See docs/maintainers/tests.md.
package simulation
