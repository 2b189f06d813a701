// Package runtimes is a reconciler for an operator whose objects of one kind each represent a
// runtime. [SetUp] connects certificates, Watchers and the installation of the agent.
//
// Each runtime gets certificates and the agent, and its API server calls the agent about the
// resources that the Watchers name. A change of a Watcher reaches all runtimes. The deletion of an
// object removes the agent and the certificates, by a finalizer.
package runtimes
