package certificates

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// slow is a control plane that waits for its first certificates, and takes its time for each list.
type slow struct {
	client.Client

	list time.Duration
}

func (s *slow) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if issuer, ok := object.(*certv1.Issuer); ok {
		issuer.Spec.CA = &certv1.CAIssuer{SecretName: names("b").authority(1)}
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{}, "")
}

func (s *slow) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	time.Sleep(s.list)
	if certificates, ok := list.(*certv1.CertificateList); ok {
		ca := certv1.Certificate{}
		ca.Labels = map[string]string{labelRole: roleCA, labelGeneration: "1"}
		certificates.Items = append(certificates.Items, ca)
	}
	return nil
}

func (s *slow) Apply(context.Context, runtime.ApplyConfiguration, ...client.ApplyOption) error {
	return nil
}

// With thousands of runtimes one look takes seconds, and a rotation may wait for weeks.
func TestALookTakesATenthOfTheTimeAtMost(t *testing.T) {
	for list, want := range map[time.Duration]time.Duration{
		0: pollInterval, 10 * time.Millisecond: pollInterval, 2 * time.Second: 36 * time.Second, time.Minute: longestRequeue,
	} {
		synctest.Test(t, func(t *testing.T) {
			set, err := New(&slow{list: list}, types.NamespacedName{Namespace: "a", Name: "b"}, []string{"c"},
				func(string, []core.RuntimeID) []core.RuntimeID { return nil }, Options{})
			check(t, err)
			if status, err := set.Reconcile(t.Context()); err != nil || status.RequeueAfter != want {
				t.Errorf("two lists of %v each: again in %v, want %v: %v", list, status.RequeueAfter, want, err)
			}
		})
	}
}
