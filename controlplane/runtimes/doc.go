// Package runtimes is a reconciler for an operator with objects of one kind that each represent a
// runtime. [SetUp] connects certificates, Watchers and the installation of the agent.
//
// Each runtime gets certificates and the agent, and its API server calls the agent about the
// resources that the Watchers name. A change of a Watcher reaches all runtimes. The deletion of an
// object removes the agent and the certificates, by a finalizer.
//
// [Options.Report] gets a status after each reconcile. Beside the reasons of package installation,
// its Reason is one of:
//
//   - IdentityUnknown: identify has failed.
//   - InvalidRuntime: the ID or the domain (annotation skr-domain) is missing or invalid.
//   - RuntimeTaken: another object has the same runtime ID.
//   - CertificateIssuing, CertificateOutdated, CertificateNoBundle: cert-manager is at work.
//   - CertificateFailed: cert-manager has refused a certificate, or cannot be asked for one.
//   - Unreachable: there is no way to the runtime.
//   - InvalidKubeconfig: the kubeconfig of the runtime is refused.
//   - InvalidWatches: no webhook configuration can be built from the Watchers.
//   - InvalidSecret: the runtime's API server would not trust the agent's certificate, or the pull
//     secret is missing or invalid.
//   - NoAddress: the address of the control plane cannot be read.
//   - Skipped: the object opts out.
//   - InstallerRefused: another installer has installed the agent in the runtime.
//   - InstallationFailed: a request to the runtime has failed.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package runtimes
