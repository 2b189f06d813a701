// Package runtimes is a reconciler for an operator with objects of one kind that each represent a
// runtime. [SetUp] connects certificates, Watchers and the installation of the agent.
//
// Each runtime gets certificates and the agent, and its API server calls the agent for the
// resources that the Watchers name. A change to a Watcher reaches all runtimes. When an object is
// deleted, a finalizer ensures that the agent and the certificates are removed.
//
// [Options.Report] gets a status after each reconcile. Its Reason is a constant of this package or
// of package installation.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package runtimes
