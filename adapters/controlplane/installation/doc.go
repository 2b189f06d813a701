// Package installation brings the agent into a runtime, keeps it there as it should be, and takes it away again.
//
// An operator calls [Installer.Install] from the reconcile of each runtime, again and again, and [Installer.Uninstall] before it lets a
// runtime go. Neither waits: both do what can be done now and say what is still awaited. All state is in the runtime, so that
// another replica, or the same one after a crash, goes on where the last one was.
//
// The manifests are those of config/agent, which work with kustomize, too.
package installation
