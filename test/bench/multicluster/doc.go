// Package multicluster compares an operator with clusters of adapters/multicluster with one that
// has the caches of the provider kubeconfig of multicluster-runtime. See
// docs/maintainers/measurements.md.
package multicluster
