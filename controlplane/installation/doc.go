// Package installation installs the agent in a runtime, corrects changes to its objects, and
// removes the agent.
//
// An operator calls [Installer.Install] in every reconcile of each runtime, and
// [Installer.Uninstall] before it releases a runtime. Both calls return without waiting: they do
// the steps that are possible now and report the next step. All state is in the runtime, so another
// replica can continue, and so can the same replica after a crash.
//
// The manifests come from config/agent and also work with kustomize.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package installation
