// Package controlplane is the control plane's side of runtime watching: it turns Watcher resources into routes to the
// operators, and into what the agents in the runtimes watch.
package controlplane
