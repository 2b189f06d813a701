// Package keysource reads the key material of an operator's listener from a Secret.
//
// A mounted Secret and [keys.Files] do the same, except for an operator that issues its own
// certificate: its pod cannot start before the Secret exists. It is a package of this module, and
// not of adapters/controllerruntime, as only operators that also issue certificates need it.
package keysource
