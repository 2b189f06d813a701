package admission

import (
	"slices"
	"strings"
)

// IsPlatformNamespace reports whether, by its name, a namespace belongs to Kubernetes, to AKS, GKE,
// OpenShift or Rancher, or to Calico or Gatekeeper, which AKS adds.
func IsPlatformNamespace(name string) bool {
	for _, prefix := range []string{"kube-", "aks-", "azure-", "gke-", "gmp-", "openshift-", "cattle-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return slices.Contains([]string{"openshift", "calico-system", "tigera-operator", "gatekeeper-system"}, name)
}
