// Package watcher is the controller of Watcher resources: it gives each of them a route in the control plane, from the gateways that
// its selector finds to the service that it names, and tells in its status how that went.
//
// [SetUp] adds it to a manager whose scheme [AddToScheme] has extended. [Watches] is the other half of a Watcher: what the agents in
// the runtimes watch, as package admission wants it.
package watcher
