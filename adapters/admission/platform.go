package admission

import (
	"slices"
	"strings"
)

// IsPlatformNamespace reports whether a namespace belongs to Kubernetes or to a platform by its
// name: those of AKS, GKE, OpenShift and Rancher, and of Calico and Gatekeeper, which AKS adds.
func IsPlatformNamespace(name string) bool {
	for _, prefix := range []string{"kube-", "aks-", "azure-", "gke-", "gmp-", "openshift-", "cattle-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return slices.Contains([]string{"openshift", "calico-system", "tigera-operator", "gatekeeper-system"}, name)
}
