package keysource_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/runtime-watcher/runtime-watcher/controlplane/keysource"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// secrets is an API server with one Secret, or without it.
type secrets struct {
	client.Reader

	mu    sync.Mutex
	data  map[string][]byte
	label string
	err   error
	reads int
}

func (s *secrets) Get(_ context.Context, name client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.reads++
	switch {
	case s.err != nil:
		return s.err
	case s.data == nil:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name.Name)
	}

	secret, _ := object.(*corev1.Secret)
	secret.Data = maps.Clone(s.data)
	secret.Labels = map[string]string{"label": s.label}

	return nil
}

func (s *secrets) set(change func(*secrets)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// issue puts a new certificate of ca into the Secret.
func (s *secrets) issue(ca *testpki.CA) *testpki.Leaf {
	leaf := must(ca.Server("kcp", testpki.Options{}))
	s.set(func(s *secrets) { s.data, s.err = testpki.Files(leaf, ca), nil })
	return leaf
}

// fixture is a source that is started, and its reports.
type fixture struct {
	*keysource.Secret

	secrets  *secrets
	ca       *testpki.CA
	reloaded int
	refused  []string
}

// start runs the source in the bubble until the test ends.
func start(t *testing.T) *fixture {
	t.Helper()

	f := &fixture{secrets: &secrets{}, ca: must(testpki.NewCA("ca", testpki.Options{}))}
	name := types.NamespacedName{Namespace: "kcp", Name: "listener"}
	f.Secret = must(keysource.NewSecret(f.secrets, name, keys.FilesOptions{Hooks: keys.FilesHooks{
		Reloaded: func(keys.Generation) { f.reloaded++ },
		Refused:  func(r keys.Refusal) { f.refused = append(f.refused, string(r.Problem)) },
	}}))

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Start = %v, want nil", err)
		}
	})

	synctest.Wait()
	return f
}

// pass lets time go by in the bubble.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (f *fixture) expect(t *testing.T, leaf *testpki.Leaf, ca *testpki.CA) {
	t.Helper()

	material, err := f.Material()
	if err != nil {
		t.Fatal(err)
	}
	if !material.Certificate.Leaf.Equal(leaf.TLS.Leaf) || !material.Roots.Equal(ca.Pool()) {
		t.Errorf("certificate %s and its CAs are not those wanted", material.Certificate.Leaf.Subject)
	}
}

// An operator that issues its own certificate begins without any. Certificate and CA change together, at most 10 s
// after the Secret.
func TestFirstMaterialIsInUseSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		if _, err := f.Material(); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "kcp/listener") {
			t.Errorf("Material = %v, want that kcp/listener is not found", err)
		}

		pass(time.Minute)
		leaf := f.secrets.issue(f.ca)
		pass(time.Second)
		f.expect(t, leaf, f.ca)
		another := must(testpki.NewCA("ca", testpki.Options{}))
		leaf = f.secrets.issue(another)
		pass(10 * time.Second)
		f.expect(t, leaf, another)

		if len(f.refused) != 0 || f.reloaded != 2 {
			t.Errorf("refused %v, reloaded %d times; want no refusal and two reloads", f.refused, f.reloaded)
		}
	})
}

func TestAnotherLabelIsNoNewMaterial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.secrets.issue(f.ca)
		pass(time.Minute)
		before := must(f.Material())
		f.secrets.set(func(s *secrets) { s.label = "another" })
		pass(time.Minute)

		if must(f.Material()) != before || f.reloaded != 1 {
			t.Errorf("reloaded %d times, want once", f.reloaded)
		}
	})
}

// TestNewMaterialRefuses of package keys has the other kinds of broken material.
func TestBrokenSecretKeepsTheLastGoodMaterial(t *testing.T) {
	for name, tc := range map[string]struct {
		problem string
		spoil   func(s *secrets)
	}{
		"deleted": {"unreadable", func(s *secrets) { s.data = nil }},
		"no API server": {"unreadable", func(s *secrets) {
			s.err = errors.New("connection refused")
		}},
		"no CA": {"empty", func(s *secrets) { delete(s.data, "ca.crt") }},
		"no certificate": {"empty", func(s *secrets) {
			delete(s.data, "tls.crt")
			delete(s.data, "tls.key")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t)
				leaf := f.secrets.issue(f.ca)
				pass(time.Minute)
				f.refused = nil
				f.secrets.set(tc.spoil)
				pass(time.Hour)
				f.expect(t, leaf, f.ca)

				if len(f.refused) != 1 || f.refused[0] != tc.problem {
					t.Errorf("refused %v, want %s once", f.refused, tc.problem)
				}

				next := f.secrets.issue(f.ca)
				pass(10 * time.Second)
				f.expect(t, next, f.ca)
			})
		})
	}
}

// Each distinct failure is reported, also the same one after a recovery.
func TestDistinctFailuresAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		leaf := f.secrets.issue(f.ca)
		sound := testpki.Files(leaf, f.ca)
		f.refused = nil

		for _, err := range []error{errors.New("one"), errors.New("two"), nil, errors.New("two")} {
			f.secrets.set(func(s *secrets) { s.data, s.err = sound, err })
			pass(time.Minute)
		}

		if len(f.refused) != 3 || f.reloaded > 1 {
			t.Errorf("refused %v, reloaded %d times; want 3 refusals and no reload after the first", f.refused, f.reloaded)
		}
	})
}

// The API server answers one small request each 5 s and replica.
func TestReadsPerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.secrets.issue(f.ca)
		pass(time.Minute)
		f.secrets.set(func(s *secrets) { s.reads = 0 })
		pass(time.Minute)

		if reads := f.secrets.reads; reads == 0 || reads > 12 {
			t.Errorf("%d reads in a minute, want 1 to 12", reads)
		}
	})
}

// A standby listens, too: a manager must start the source there, or the standby serves an expired
// certificate.
func TestAStandbyFollowsItsSecret(t *testing.T) {
	source := must(keysource.NewSecret(&secrets{}, types.NamespacedName{Namespace: "kcp", Name: "listener"}, keys.FilesOptions{}))
	if runnable, ok := manager.Runnable(source).(manager.LeaderElectionRunnable); !ok || runnable.NeedLeaderElection() {
		t.Error("a replica that does not lead does not start the source")
	}
}

func TestNewSecretRefuses(t *testing.T) {
	name := types.NamespacedName{Namespace: "kcp", Name: "listener"}
	_, noReader := keysource.NewSecret(nil, name, keys.FilesOptions{})
	_, noName := keysource.NewSecret(&secrets{}, types.NamespacedName{}, keys.FilesOptions{})
	_, wrongPoll := keysource.NewSecret(&secrets{}, name, keys.FilesOptions{Poll: -1})
	if noReader == nil || noName == nil || wrongPoll == nil {
		t.Errorf("no reader: %v, no name: %v, negative Poll: %v; want errors", noReader, noName, wrongPoll)
	}
}
