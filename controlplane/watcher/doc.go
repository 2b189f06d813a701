// Package watcher is the controller of Watcher resources. It makes a route in the control plane for
// each Watcher, from the gateways that its selector matches to the service that it names. The
// status of the Watcher reports the result.
//
// [SetUp] adds the controller to a manager with a scheme that [AddToScheme] has extended. [Watches]
// converts Watchers to the watches that package admission needs for the runtimes.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package watcher
