// Package certificates keeps the certificates of a control plane and its runtimes, with cert-manager: a CA of its own, the
// certificate of the listener or gateway, and one certificate per runtime, which is both the client certificate of its
// agent and the one that its webhook serves. It rotates the CA while traffic flows.
//
// An operator calls [Certificates.Reconcile] for the control plane's side and [Certificates.EnsureRuntime] from the reconcile
// of each runtime. Neither waits: both bring the cluster one step nearer to what is wanted and say what is still missing. All
// state is in the cluster, so that another replica, or the same one after a crash, goes on where the last one was.
//
// docs/certificates.md shows what is created, and in which order a CA is rotated.
package certificates
