package certificates

import (
	"slices"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func isIssuing(certificate *certv1.Certificate) bool {
	return slices.ContainsFunc(certificate.Status.Conditions, func(condition certv1.CertificateCondition) bool {
		return condition.Type == certv1.CertificateConditionIssuing && condition.Status == cmmeta.ConditionTrue
	})
}

func setIssuing(certificate *certv1.Certificate, now metav1.Time) {
	isOld := func(c certv1.CertificateCondition) bool { return c.Type == certv1.CertificateConditionIssuing }
	certificate.Status.Conditions = slices.DeleteFunc(certificate.Status.Conditions, isOld)
	certificate.Status.Conditions = append(certificate.Status.Conditions, certv1.CertificateCondition{
		Type: certv1.CertificateConditionIssuing, Status: cmmeta.ConditionTrue, Reason: "CARotated",
		Message: "Its CA is being replaced", LastTransitionTime: &now, ObservedGeneration: certificate.Generation,
	})
}
