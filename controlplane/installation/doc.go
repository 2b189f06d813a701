// Package installation installs the agent in a runtime, corrects changes there, and removes the
// agent again.
//
// An operator calls [Installer.Install] from the reconcile of each runtime, again and again, and
// [Installer.Uninstall] before it lets a runtime go. Neither waits: both do the steps that are
// possible now and report the next one. All state is in the runtime, so another replica, or the
// same one after a crash, continues.
//
// The manifests are those of config/agent, which work with kustomize, too.
//
// Zero, negative and empty options follow the rule in docs/guide/embedding.md.
package installation
