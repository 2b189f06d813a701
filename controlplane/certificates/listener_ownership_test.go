package certificates

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"

	certv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// issuedFor returns a control plane in which the certificates of a runtime are issued, beside
// further objects.
func issuedFor(t *testing.T, ca *testpki.CA, r Runtime, beside ...client.Object) *Certificates {
	t.Helper()

	set := newSet(t, newPlane(t, new([]types.UID), beside...), "watcher")
	status, err := set.EnsureRuntime(t.Context(), r)
	if status.Ready || err != nil && !errors.Is(err, errForeign) {
		t.Fatalf("status %+v, error %v, want certificates that are not issued yet", status, err)
	}

	for _, wanted := range []*certv1.Certificate{set.clientCertificate(r), set.webhookCertificate(r)} {
		issue := ca.Server
		if wanted.Spec.Usages[1] == certv1.UsageClientAuth {
			issue = ca.Client
		}

		leaf, err := issue(wanted.Spec.CommonName, testpki.Options{DNSNames: wanted.Spec.DNSNames})
		check(t, err)
		check(t, set.client.Create(t.Context(), &corev1.Secret{ObjectMeta: wanted.ObjectMeta, Data: testpki.Files(leaf, ca)}))
	}

	return set
}

// Another client makes a Secret with the name of the listener's before this set does, or after the
// loss of that Secret. Its bundle has a CA that agents must not trust: the holder of its key would
// be the control plane for them.
func TestTheBundleOfAnotherClientReachesNoAgent(t *testing.T) {
	t.Parallel()

	ca, err := testpki.NewCA("watcher-ca-1", testpki.Options{})
	check(t, err)
	stranger, err := testpki.NewCA("stranger", testpki.Options{})
	check(t, err)
	r := Runtime{ID: shared, Domain: "prod.example.com"}

	for name, row := range map[string]struct {
		labels  map[string]string
		imports bool
		ready   bool
	}{
		"control: of this set":            {labels: map[string]string{stored(labelSet): "watcher"}, ready: true},
		"of nobody":                       {},
		"of another set":                  {labels: map[string]string{stored(labelSet): "another"}},
		"to be taken over with an import": {imports: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			listener := &corev1.Secret{Data: map[string][]byte{"ca.crt": testpki.Bundle(ca, stranger)}}
			listener.Namespace, listener.Name, listener.Labels = "kcp", objectNames{set: "watcher"}.listener(), row.labels
			set := issuedFor(t, ca, r, listener)

			if row.imports {
				set.opts.ImportCA = types.NamespacedName{Namespace: "kcp", Name: "former-ca"}
			}

			status, err := set.EnsureRuntime(t.Context(), r)
			if status.Ready != row.ready || !row.ready && bytes.Contains(status.Secret["ca.crt"], stranger.PEM) {
				t.Errorf("ready: %t, want %t, and no CA of a stranger", status.Ready, row.ready)
			}

			isRefused := !row.ready && !row.imports
			isNamed := err != nil && strings.Contains(err.Error(), "Secret kcp/watcher-listener")
			if isNamed != isRefused || !isRefused && err != nil {
				t.Errorf("error %v, want one with kind and name: %t", err, isRefused)
			}
			if row.imports && status.Reason != ReasonNoBundle {
				t.Errorf("reason %s, want %s until the import has published a bundle", status.Reason, ReasonNoBundle)
			}
		})
	}
}

// After the first rotation, the Secret of the listener is not the one that the import took over. A
// Secret without a mark is of others then, with or without the option.
func TestAnImportTakesOverOnce(t *testing.T) {
	t.Parallel()

	object := func(isImported bool) client.Object {
		ca := &corev1.Secret{}
		if isImported {
			ca.Annotations = map[string]string{stored(annotationImported): "kcp/former-ca"}
		}

		return ca
	}
	for name, row := range map[string]struct {
		cas     map[int]client.Object
		refused bool
	}{
		"control: before the import":      {},
		"control: before the publication": {cas: map[int]client.Object{1: object(true)}},
		"beside the next CA":              {map[int]client.Object{1: object(true), 2: object(false)}, true},
		"with the next CA alone":          {map[int]client.Object{2: object(false)}, true},
	} {
		set := newSet(t, newPlane(t, new([]types.UID)), "watcher")
		set.opts.ImportCA = types.NamespacedName{Namespace: "kcp", Name: "former-ca"}
		err := set.checkListener(&observed{names: set.names, objects: row.cas, listener: &corev1.Secret{}})
		if (err != nil) != row.refused {
			t.Errorf("%s: error %v, want one: %t", name, err, row.refused)
		}
	}
}

// Another client has taken the label of this set from a Certificate that is to be issued anew.
func TestACertificateOfOthersIsNotReissued(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]bool{"watcher": true, "another": false} {
		certificate := certificateFor(set, shared)
		isReissued := false
		c := interceptor.NewClient(newPlane(t, new([]types.UID), certificate), interceptor.Funcs{
			SubResourceUpdate: func(
				context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption,
			) error {
				isReissued = true
				return nil
			},
		})

		check(t, newSet(t, c, "watcher").markForIssue(t.Context(), certificate.GetName()))
		if isReissued != want {
			t.Errorf("a Certificate of %s is issued anew: %t, want %t", set, isReissued, want)
		}
	}
}

// Another client takes the label from the Secret that an import has taken over. Agents get no
// bundle without the label, so the Secret counts as not published, and is written again with the
// label.
func TestAnImportedSecretGetsItsLabelBack(t *testing.T) {
	t.Parallel()

	ca, err := testpki.NewCA("watcher-ca-1", testpki.Options{})
	check(t, err)
	leaf, err := ca.Server("listener.example.com", testpki.Options{})
	check(t, err)

	for name, strip := range map[string]bool{"control: with its label": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			listener := &corev1.Secret{Data: testpki.Files(leaf, ca), Type: corev1.SecretTypeTLS}
			listener.Namespace, listener.Name = "kcp", objectNames{set: "watcher"}.listener()
			set := issuedFor(t, ca, Runtime{ID: shared, Domain: "prod.example.com"}, listener)
			set.opts.ImportCA = types.NamespacedName{Namespace: "kcp", Name: "former-ca"}
			observe := func() *observed {
				seen := &observed{view: view{now: time.Now()}, names: set.names, secrets: map[string]*corev1.Secret{}}
				check(t, set.readListener(t.Context(), seen))
				check(t, set.checkListener(seen))
				seen.wanted = set.wantedListener(seen)

				return seen
			}

			check(t, set.publishListener(t.Context(), observe()))
			if strip {
				taken := observe().listener
				delete(taken.Labels, stored(labelSet))
				check(t, set.client.Update(t.Context(), taken))
			}

			seen := observe()
			if seen.isPublished() == strip {
				t.Fatalf("published: %t, want %t", strip, !strip)
			}

			check(t, set.publishListener(t.Context(), seen))
			status, err := set.EnsureRuntime(t.Context(), Runtime{ID: shared, Domain: "prod.example.com"})
			if err != nil || !status.Ready {
				t.Errorf("status %s (%s), error %v, want a bundle for the agent", status.Reason, status.Message, err)
			}
		})
	}
}

// A Certificate may be deleted between a reading and the request for a new one.
func TestACertificateThatIsGoneIsNotReissued(t *testing.T) {
	t.Parallel()
	check(t, newSet(t, newPlane(t, new([]types.UID)), "watcher").markForIssue(t.Context(), "gone"))
}

// Only another key for the same name means that the Secret of a CA was lost. The bundle has other
// CAs in each rotation.
func TestACAIsReplacedByItsNamesakeOnly(t *testing.T) {
	t.Parallel()

	certificateOf := func(name string) *x509.Certificate {
		ca, err := testpki.NewCA(name, testpki.Options{})
		check(t, err)
		return ca.Certificate
	}

	issued := certificateOf("ca-2")
	namesake := certificateOf("ca-2")
	other := certificateOf("ca-1")

	for name, tt := range map[string]struct {
		bundle []*x509.Certificate
		want   bool
	}{
		"not published yet":   {nil, false},
		"published":           {[]*x509.Certificate{issued}, false},
		"beside a former one": {[]*x509.Certificate{other}, false},
		"another key":         {[]*x509.Certificate{other, namesake}, true},
	} {
		if have := (&observed{bundle: tt.bundle}).replaces(issued, "ca-2"); have != tt.want {
			t.Errorf("%s: replaced %t, want %t", name, have, tt.want)
		}
	}

	if (&observed{bundle: []*x509.Certificate{namesake}}).replaces(issued, "ca-3") {
		t.Error("a CA replaces one of another generation")
	}
}
