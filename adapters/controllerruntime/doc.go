// Package controllerruntime connects a listener to an operator that is built with
// controller-runtime.
//
// [RegisterListenerComponent] is the short way. It returns a listener to add to a controller
// manager (the Manager of controller-runtime), and a [Source] for a controller to watch. A Source
// puts the requests that a [MapFunc] makes of a delivery straight into the controller's workqueue.
//
// [Runtimes] finds the objects that stand for runtimes in the cache of a controller manager. It is
// needed for [EnqueueByRuntime] and for SAN pinning.
//
// A [core.Manager] is something else: the name of an operator in the paths of a listener. Nothing
// here starts a goroutine of its own, waits for a cache, or calls the API server for an event.
package controllerruntime
