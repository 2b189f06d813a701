// Package controllerruntime connects a listener to an operator that is built with
// controller-runtime.
//
// # Overview
//
// [RegisterListenerComponent] returns a listener to add to a controller manager, and a [Source] for
// a controller to watch. A [MapFunc] makes the requests of each verified event. The source puts
// them straight into the workqueue of the controller.
//
// [Runtimes] finds the objects that stand for runtimes, in the cache of the controller manager. SAN
// pinning reads their registered domains, and [EnqueueByRuntime] their names.
//
// # Usage
//
//  1. Make [Runtimes] for the kind of the objects, with [ByName], [ByLabel] or a function of your
//     own.
//  2. Call [RegisterListenerComponent] with peers, listener.SANPinning(runtimes) and
//     [EnqueueByRuntime].
//  3. Pass the listener to mgr.Add, and the source to WatchesRawSource of a controller.
//
// For adaptive polling, set a fleet in the options of the listener. The reconciler returns its
// RequeueAfter, for the runtime that [Runtimes.ID] names.
//
// An operator with several replicas adds [NewLeaderEndpoint], which makes the leader the only
// endpoint of a Service.
//
// Package controllerruntimetest has a cache in memory, so that unit tests need no API server.
//
// # Rationale
//
// Nothing here starts a goroutine of its own, or waits for a cache. An event never costs a call of
// the API server, because its sender waits meanwhile.
//
// A [core.Manager] is the name of an operator in the paths of a listener. It is not the Manager of
// controller-runtime, which these comments call controller manager.
package controllerruntime
