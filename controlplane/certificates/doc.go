// Package certificates manages the certificates of a control plane and its runtimes with
// cert-manager. The control plane has a CA and the certificate of the listener or gateway. Each
// runtime has a client certificate for its agent and a serving certificate for its webhook. The
// package rotates the CA while traffic flows.
//
// An operator calls [Certificates.Reconcile] for the control plane and
// [Certificates.EnsureRuntime] from the reconcile of each runtime. Neither waits: both do the steps
// that are possible now and report the next step. All state is in the cluster, so another replica
// can continue, and so can the same replica after a crash.
//
// docs/platforms/certificates.md lists the objects and the order of a rotation.
//
// The required rights are listed in deploy/controlplane/certificates. They are needed only in the
// namespace of the objects: bind that ClusterRole with a RoleBinding in the namespace.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package certificates

// +kubebuilder:rbac:groups=cert-manager.io,resources=certificates,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=cert-manager.io,resources=certificates/status,verbs=update
// +kubebuilder:rbac:groups=cert-manager.io,resources=issuers,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;create;patch;delete
