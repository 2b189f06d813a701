package installation

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/material"
)

// secret has the keys that the agent reads. The serving pair is optional.
func (i *Installer) secret(r *Runtime) *unstructured.Unstructured {
	data := map[string][]byte{
		material.CA:                r.Secret[material.CA],
		material.ClientCertificate: r.Secret[material.ClientCertificate],
		material.ClientKey:         r.Secret[material.ClientKey],
	}
	if r.hasServingPair() {
		data[material.ServingCertificate] = r.Secret[material.ServingCertificate]
		data[material.ServingKey] = r.Secret[material.ServingKey]
	}
	return i.secretOf(i.opts.secretName(), corev1.SecretTypeTLS, data)
}

// pullSecret has the credentials of the registry.
func (i *Installer) pullSecret(r *Runtime) *unstructured.Unstructured {
	return i.secretOf(i.pullSecretName(), corev1.SecretTypeDockerConfigJson,
		map[string][]byte{corev1.DockerConfigJsonKey: r.PullSecret})
}

// annotationPullSecret is on the ConfigMap of a runtime with a copy of a pull secret.
const annotationPullSecret = "operator.kyma-project.io/pull-secret" //nolint:gosec // It is no secret.

// formerPullSecret returns the copies that a runtime has. live is its ConfigMap, nil if there is
// none.
func (i *Installer) formerPullSecret(live *unstructured.Unstructured) []*unstructured.Unstructured {
	if live == nil || live.GetAnnotations()[annotationPullSecret] == "" {
		return nil
	}
	return []*unstructured.Unstructured{i.pullSecret(&Runtime{})}
}

func (i *Installer) pullSecretName() string { return i.opts.Name + "-pull" }

func (i *Installer) secretOf(name string, kind corev1.SecretType, data map[string][]byte) *unstructured.Unstructured {
	return i.finished(&unstructured.Unstructured{Object: content(&corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: i.opts.Namespace, Name: name, Labels: i.labels()},
		Type:       kind,
		Data:       data,
	})})
}
