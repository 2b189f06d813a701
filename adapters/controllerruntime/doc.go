// Package controllerruntime brings the deliveries of a listener into an operator built with controller-runtime.
//
// [RegisterListenerComponent] is the short way in: it returns a listener for the manager to run, and a [Source] for a
// controller to watch. A Source puts what a [MapFunc] makes of a delivery straight into the controller's workqueue.
// [Runtimes] is what the manager's cache knows of the objects that stand for runtimes: it serves [EnqueueByRuntime], and
// it is where SAN pinning finds the domain of a runtime.
//
// Nothing here starts a goroutine of its own, waits for a cache, or asks the API server while an event is handled.
package controllerruntime
