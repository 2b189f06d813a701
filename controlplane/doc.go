// Package controlplane is the control plane's side of runtime watching. It converts Watcher
// resources to routes in the control plane and to watches in the runtimes.
package controlplane
