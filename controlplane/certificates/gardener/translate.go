package gardener

import (
	"fmt"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/serverside"
)

// certificate has the fields of a Certificate of cert-management that matter here. Usages and times
// cannot be set there.
type certificate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		CommonName   string            `json:"commonName,omitempty"`
		DNSNames     []string          `json:"dnsNames"`
		SecretName   string            `json:"secretName"`
		SecretLabels map[string]string `json:"secretLabels,omitempty"`
		IssuerRef    reference         `json:"issuerRef"`
		PrivateKey   *privateKey       `json:"privateKey,omitempty"`
	} `json:"spec"`
	Status struct {
		ObservedGeneration   int64        `json:"observedGeneration"`
		State                string       `json:"state"`
		Message              string       `json:"message"`
		LastPendingTimestamp *metav1.Time `json:"lastPendingTimestamp"`
	} `json:"status"`
}

type reference struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
}

type privateKey struct {
	Algorithm certv1.PrivateKeyAlgorithm `json:"algorithm"`
	Size      int                        `json:"size"`
}

// certificateFrom translates a Certificate of cert-management.
func certificateFrom(found *unstructured.Unstructured, into *certv1.Certificate) error {
	var read certificate
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &read); err != nil {
		return fmt.Errorf("gardener: Certificate %s: %w", found.GetName(), err)
	}
	*into = certv1.Certificate{ObjectMeta: read.ObjectMeta, Spec: certv1.CertificateSpec{
		CommonName: read.Spec.CommonName, DNSNames: read.Spec.DNSNames, SecretName: read.Spec.SecretName,
	}}
	status := cmmeta.ConditionFalse
	if read.Status.State == "Pending" || read.Status.ObservedGeneration < read.Generation {
		status = cmmeta.ConditionTrue
	}
	into.Status.Conditions = []certv1.CertificateCondition{{
		Type: certv1.CertificateConditionIssuing, Status: status, Message: read.Status.Message,
	}}
	if read.Status.State == "Error" {
		into.Status.LastFailureTime = &read.CreationTimestamp
		if read.Status.LastPendingTimestamp != nil {
			into.Status.LastFailureTime = read.Status.LastPendingTimestamp
		}
	}
	return nil
}

// toCertificate returns a Certificate of cert-management.
func (t *translator) toCertificate(from *certv1.Certificate) (*unstructured.Unstructured, error) {
	to := certificate{TypeMeta: typeMeta("Certificate"), ObjectMeta: from.ObjectMeta}
	to.Spec.CommonName, to.Spec.DNSNames = from.Spec.CommonName, from.Spec.DNSNames
	to.Spec.SecretName = from.Spec.SecretName
	to.Spec.IssuerRef = reference{from.Spec.IssuerRef.Name, t.issuerNamespace}
	if template := from.Spec.SecretTemplate; template != nil {
		to.Spec.SecretLabels = template.Labels
	}
	if key := from.Spec.PrivateKey; key != nil {
		to.Spec.PrivateKey = &privateKey{key.Algorithm, key.Size}
	}
	return contentOf(&to)
}

// issuerFrom translates an Issuer of cert-management.
func issuerFrom(found *unstructured.Unstructured, into *certv1.Issuer) error {
	var read metav1.PartialObjectMetadata
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &read); err != nil {
		return fmt.Errorf("gardener: Issuer %s: %w", found.GetName(), err)
	}
	*into = certv1.Issuer{ObjectMeta: read.ObjectMeta}
	if ca, _, _ := unstructured.NestedString(found.Object, "spec", "ca", "privateKeySecretRef", "name"); ca != "" {
		into.Spec.CA = &certv1.CAIssuer{SecretName: ca}
	}
	return nil
}

func toIssuer(from *certv1.Issuer) (*unstructured.Unstructured, error) {
	to, err := contentOf(&metav1.PartialObjectMetadata{TypeMeta: typeMeta("Issuer"), ObjectMeta: from.ObjectMeta})
	if err != nil {
		return nil, err
	}
	ca := map[string]any{"name": from.Spec.CA.SecretName, "namespace": from.Namespace}
	to.Object["spec"] = map[string]any{"ca": map[string]any{"privateKeySecretRef": ca}}
	return to, nil
}

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: groupVersion().String(), Kind: kind}
}

func contentOf(object any) (*unstructured.Unstructured, error) {
	content, err := serverside.Content(object)
	return &unstructured.Unstructured{Object: content}, err
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
