// Package today has the objects of today's fleet in the shape that they have in clusters of
// kyma-project/lifecycle-manager: names, namespaces, labels, finalizers, keys and stored versions.
// They are written for the tests of this repository. Its agent and its operator act as those of
// today, as far as a migration depends on it.
package today
