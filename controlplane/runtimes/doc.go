// Package runtimes is a reconciler for an operator with objects of one kind that each represent a
// runtime. [SetUp] connects certificates, Watchers and the installation of the agent.
//
// Each runtime gets certificates and the agent, and its API server calls the agent about the
// resources that the Watchers name. A change of a Watcher reaches all runtimes. The deletion of an
// object removes the agent and the certificates, by a finalizer.
//
// [Options.Report] gets a status after each reconcile. Its Reason is one of the constants of this
// package and of package installation.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package runtimes
