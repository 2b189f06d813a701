// Package runtimes is a ready reconciler for an operator whose objects of some kind each represent a runtime: certificates, Watchers and
// the agent come together in [SetUp].
//
// Each runtime gets its certificate and the agent, and its API server calls the agent about what the Watchers name. A Watcher
// that changes reaches all runtimes. An object that goes takes the agent and the certificate with it, by a finalizer.
package runtimes
