// Package installation installs the agent in a runtime, corrects changes there, and removes the
// agent again.
//
// An operator calls [Installer.Install] from the reconcile of each runtime, again and again, and
// [Installer.Uninstall] before it lets a runtime go. Both calls return without waiting: they do the
// steps that are possible now and report the next step. All state is in the runtime, so another
// replica can continue, and so can the same replica after a crash.
//
// The manifests are those of config/agent, which also work with kustomize.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package installation
