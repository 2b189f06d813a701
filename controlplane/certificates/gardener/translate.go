package gardener

import (
	"fmt"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// The states of a Certificate of cert-management.
const (
	statePending = "Pending"
	stateError   = "Error"
)

// certificate has the fields of a Certificate of cert-management that matter here.
type certificate struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		CommonName string   `json:"commonName"`
		DNSNames   []string `json:"dnsNames"`
		SecretName string   `json:"secretName"`
	} `json:"spec"`
	Status struct {
		ObservedGeneration   int64        `json:"observedGeneration"`
		State                string       `json:"state"`
		Message              string       `json:"message"`
		LastPendingTimestamp *metav1.Time `json:"lastPendingTimestamp"`
	} `json:"status"`
}

// certificateFrom translates a Certificate of cert-management.
func certificateFrom(found *unstructured.Unstructured, into *certv1.Certificate) error {
	var read certificate
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &read); err != nil {
		return fmt.Errorf("gardener: Certificate %s: %w", found.GetName(), err)
	}
	*into = certv1.Certificate{ObjectMeta: read.Metadata}
	into.Spec.CommonName, into.Spec.DNSNames, into.Spec.SecretName = read.Spec.CommonName, read.Spec.DNSNames,
		read.Spec.SecretName
	status := cmmeta.ConditionFalse
	if read.Status.State == statePending || read.Status.ObservedGeneration < read.Metadata.Generation {
		status = cmmeta.ConditionTrue
	}
	into.Status.Conditions = []certv1.CertificateCondition{{
		Type: certv1.CertificateConditionIssuing, Status: status, Message: read.Status.Message,
	}}
	if read.Status.State == stateError {
		into.Status.LastFailureTime = &read.Metadata.CreationTimestamp
		if read.Status.LastPendingTimestamp != nil {
			into.Status.LastFailureTime = read.Status.LastPendingTimestamp
		}
	}
	return nil
}

// toCertificate returns a Certificate of cert-management. Usages and times cannot be set there.
func (t *translator) toCertificate(from *certv1.Certificate) *unstructured.Unstructured {
	object := withMeta("Certificate", &from.ObjectMeta)
	if from.Spec.CommonName != "" {
		set(object, from.Spec.CommonName, "spec", "commonName")
	}
	set(object, anyOf(from.Spec.DNSNames), "spec", "dnsNames")
	set(object, from.Spec.SecretName, "spec", "secretName")
	set(object, from.Spec.IssuerRef.Name, "spec", "issuerRef", "name")
	if t.issuerNamespace != "" {
		set(object, t.issuerNamespace, "spec", "issuerRef", "namespace")
	}
	if template := from.Spec.SecretTemplate; template != nil {
		for name, value := range template.Labels {
			set(object, value, "spec", "secretLabels", name)
		}
	}
	if key := from.Spec.PrivateKey; key != nil {
		set(object, string(key.Algorithm), "spec", "privateKey", "algorithm")
		set(object, int64(key.Size), "spec", "privateKey", "size")
	}
	return object
}

// issuerFrom translates an Issuer of cert-management.
func issuerFrom(found *unstructured.Unstructured, into *certv1.Issuer) error {
	var read struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			CA *struct {
				PrivateKeySecretRef struct {
					Name string `json:"name"`
				} `json:"privateKeySecretRef"`
			} `json:"ca"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &read); err != nil {
		return fmt.Errorf("gardener: Issuer %s: %w", found.GetName(), err)
	}
	*into = certv1.Issuer{ObjectMeta: read.Metadata}
	if read.Spec.CA != nil {
		into.Spec.CA = &certv1.CAIssuer{SecretName: read.Spec.CA.PrivateKeySecretRef.Name}
	}
	return nil
}

func toIssuer(from *certv1.Issuer) *unstructured.Unstructured {
	object := withMeta("Issuer", &from.ObjectMeta)
	set(object, from.Spec.CA.SecretName, "spec", "ca", "privateKeySecretRef", "name")
	set(object, from.Namespace, "spec", "ca", "privateKeySecretRef", "namespace")
	return object
}

// withMeta returns an object with the metadata that a client may set.
func withMeta(kind string, meta *metav1.ObjectMeta) *unstructured.Unstructured {
	object := newObject(kind)
	object.SetNamespace(meta.Namespace)
	object.SetName(meta.Name)
	object.SetLabels(meta.Labels)
	object.SetAnnotations(meta.Annotations)
	object.SetOwnerReferences(meta.OwnerReferences)
	return object
}

// translateOwners corrects references to Certificates. The garbage collector would delete an object
// with an owner that does not exist.
func translateOwners(object *unstructured.Unstructured) {
	owners := object.GetOwnerReferences()
	for i := range owners {
		if owners[i].APIVersion == certv1.SchemeGroupVersion.String() {
			owners[i].APIVersion = groupVersion().String()
		}
	}
	if len(owners) > 0 {
		object.SetOwnerReferences(owners)
	}
}

// set panics if a field on the way is no object, which this package never makes.
func set(object *unstructured.Unstructured, value any, fields ...string) {
	if err := unstructured.SetNestedField(object.Object, value, fields...); err != nil {
		panic(fmt.Sprintf("gardener: %v", err))
	}
}

func anyOf(texts []string) []any {
	all := make([]any, len(texts))
	for i, text := range texts {
		all[i] = text
	}
	return all
}
