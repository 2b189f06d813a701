package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/canary"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// clusterStore is the webhook configuration of a cluster. Its Apply is that of an API server, as
// far as annotations, conditions and webhooks are concerned: those that others have added stay.
type clusterStore struct {
	mu      sync.Mutex
	live    *webhookConfiguration
	made    int
	writes  int
	refused error
	// isOld drops match conditions, as an API server before Kubernetes 1.28.
	isOld bool
	// watches are called after each change.
	watches []chan struct{}
	// edits is called after each write, as another program that watches.
	edits func(*webhookConfiguration)
}

func (s *clusterStore) Read(context.Context) (*webhookConfiguration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live.DeepCopy(), nil
}

func (s *clusterStore) Apply(_ context.Context, want, live *webhookConfiguration) (*webhookConfiguration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused != nil {
		return nil, s.refused
	}
	if live != nil && (s.live == nil || s.live.UID != live.UID) {
		return nil, errors.New("409 Conflict")
	}

	next := want.DeepCopy()
	if s.live == nil {
		s.made++
		next.UID = types.UID(strconv.Itoa(s.made))
	} else {
		next.UID = s.live.UID
		keepMetadata(next, s.live)
		keepConditions(next, s.live)
		keepGuests(next, s.live)
	}

	for n := range next.Webhooks {
		if s.isOld {
			next.Webhooks[n].MatchConditions = nil
		}
	}

	next.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: canary.FieldManager, Operation: metav1.ManagedFieldsOperationApply, Time: new(metav1.Now())},
	}

	s.live = next
	s.writes++
	s.notify()
	if s.edits != nil {
		s.edits(s.live)
	}

	return next.DeepCopy(), nil
}

func keepMetadata(next, live *webhookConfiguration) {
	for name, value := range live.Annotations {
		if _, isOurs := next.Annotations[name]; !isOurs {
			next.Annotations[name] = value
		}
	}
}

func keepConditions(next, live *webhookConfiguration) {
	for n := range next.Webhooks {
		for m := range live.Webhooks {
			if next.Webhooks[n].Name != live.Webhooks[m].Name {
				continue
			}
			for _, condition := range live.Webhooks[m].MatchConditions {
				if condition.Name == "foreign" {
					next.Webhooks[n].MatchConditions = append(next.Webhooks[n].MatchConditions, condition)
				}
			}
		}
	}
}

func keepGuests(next, live *webhookConfiguration) {
	for n := range live.Webhooks {
		if strings.HasPrefix(live.Webhooks[n].Name, "guest.") {
			next.Webhooks = append(next.Webhooks, live.Webhooks[n])
		}
	}
}

func (s *clusterStore) Delete(_ context.Context, live *webhookConfiguration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live == nil || s.live.UID != live.UID {
		return errors.New("409 Conflict")
	}

	s.live = nil
	s.notify()
	return nil
}

func (s *clusterStore) Watch(ctx context.Context, changed func()) error {
	events := make(chan struct{}, 1)
	s.mu.Lock()
	s.watches = append(s.watches, events)
	s.mu.Unlock()

	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-events:
			changed()
		}
	}
}

func (s *clusterStore) notify() {
	for _, events := range s.watches {
		select {
		case events <- struct{}{}:
		default:
		}
	}
}

// change is a write of another program.
func (s *clusterStore) change(edit func(live *webhookConfiguration) *webhookConfiguration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live = edit(s.live)
	s.notify()
}

func (s *clusterStore) now() (live *webhookConfiguration, writes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live.DeepCopy(), s.writes
}

// keeping is a keeper under test, with what it has reported.
type keeping struct {
	*webhookKeeper

	stop func()

	mu      sync.Mutex
	resyncs int
	results map[string]int
	log     lockedBuffer
}

func (k *keeping) resyncsSoFar() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.resyncs
}

func (k *keeping) logged() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.log.text.String()
}

// servingPair is a CA, and key material for the webhook of that CA.
func servingPair(t *testing.T) (ca *testpki.CA, serving keys.Source) {
	t.Helper()

	// A bubble of synctest begins in the year 2000.
	begin := time.Date(1999, time.January, 1, 0, 0, 0, 0, time.UTC)
	ca, err := testpki.NewCA("webhook", testpki.Options{NotBefore: begin})
	check(t, err)
	leaf, err := ca.Server("agent", testpki.Options{
		DNSNames: []string{"runtime-watcher.runtime-watcher.svc"}, NotBefore: begin,
	})
	check(t, err)
	material, err := keys.NewMaterial(ca.PEM, leaf.CertPEM, leaf.KeyPEM)
	check(t, err)

	return ca, material
}

func bundleFile(t *testing.T, bundle []byte) string {
	t.Helper()

	path := filepath.Join(t.TempDir(), "ca.crt")
	check(t, os.WriteFile(path, bundle, 0o600))
	return path
}

func watchesOf(resources ...string) (watches []watch.Watch) {
	for _, resource := range resources {
		watches = append(watches, watch.Watch{
			Name: types.NamespacedName{Namespace: "default", Name: resource}, Manager: "widgets",
			Resource: schema.GroupVersionResource{Version: "v1", Resource: resource},
		})
	}
	return watches
}

func intendedFor(serving keys.Source, ca string, resources ...string) intended {
	return newIntended(Options{
		Canary: Canary{Lease: types.NamespacedName{Namespace: "runtime-watcher", Name: "canary"}},
		Webhook: Webhook{Configuration: "runtime-watcher", Own: OwnConfiguration{
			Watches: watchesOf(resources...),
			Service: types.NamespacedName{Namespace: "runtime-watcher", Name: "runtime-watcher"},
		}},
	}, serving, ca)
}

// keepIn starts a keeper, which stop ends.
func keepIn(t *testing.T, store ConfigurationStore, want intended) *keeping {
	t.Helper()

	k := &keeping{results: map[string]int{}}
	k.log.mu = &k.mu
	k.webhookKeeper = &webhookKeeper{
		store: store, want: want, every: 30 * time.Second,
		answers: func() bool { return true },
		countCheck: func(c hook.WebhookCheck) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.results[c.Result]++
		},
		requestResync: func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.resyncs++
		},
	}

	k.webhookKeeper.log.to = slog.New(slog.NewTextHandler(&k.log, nil))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = k.keepWebhooks(ctx) // It returns nil.
	}()

	k.stop = func() {
		cancel()
		<-ended
	}

	return k
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A configuration that others change is back within 5 s, a heartbeat may see why, and a resync
// follows.
func TestAnAgentKeepsItsWebhooks(t *testing.T) {
	ca, serving := servingPair(t)
	want := intendedFor(serving, bundleFile(t, ca.PEM), "configmaps", "secrets")
	for name, test := range map[string]struct {
		edit    func(*webhookConfiguration) *webhookConfiguration
		problem string
	}{
		"deleted": {func(*webhookConfiguration) *webhookConfiguration { return nil }, "is missing"},
		"emptied": {func(live *webhookConfiguration) *webhookConfiguration {
			live.Webhooks = nil
			return live
		}, "is missing"},
		"one webhook removed": {func(live *webhookConfiguration) *webhookConfiguration {
			live.Webhooks = live.Webhooks[:1]
			return live
		}, "is missing"},
		"narrowed": {func(live *webhookConfiguration) *webhookConfiguration {
			live.Webhooks[1].ObjectSelector.MatchLabels = map[string]string{"a": "b"}
			return live
		}, "objectSelector changed"},
		"a field that an apply keeps": {func(live *webhookConfiguration) *webhookConfiguration {
			live.Webhooks[1].MatchConditions = append(live.Webhooks[1].MatchConditions,
				admissionregistrationv1.MatchCondition{Name: "foreign", Expression: "false"})
			return live
		}, "matchConditions changed"},
		"another caBundle": {func(live *webhookConfiguration) *webhookConfiguration {
			for n := range live.Webhooks {
				live.Webhooks[n].ClientConfig.CABundle = []byte("none")
			}
			return live
		}, "caBundle changed"},
		"another mark": {func(live *webhookConfiguration) *webhookConfiguration {
			live.Annotations[new(OwnConfiguration).mark()] = "nobody"
			return live
		}, "installed-by changed"},
		"a longer timeout": {func(live *webhookConfiguration) *webhookConfiguration {
			live.Webhooks[1].TimeoutSeconds = new(int32(5))
			return live
		}, "timeoutSeconds changed"},
		"without conditions": {func(live *webhookConfiguration) *webhookConfiguration {
			live.Webhooks[1].MatchConditions = nil
			return live
		}, "matchConditions are missing"},
		"a webhook more, which an apply keeps": {func(live *webhookConfiguration) *webhookConfiguration {
			live.Webhooks = append(live.Webhooks, admissionregistrationv1.ValidatingWebhook{
				Name: "guest.example.com", ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: ca.PEM},
			})
			return live
		}, "guest.example.com does not belong to this agent"},
		"without its annotations": {func(live *webhookConfiguration) *webhookConfiguration {
			live.Annotations = nil
			return live
		}, "no valid record"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &clusterStore{}
				k := keepIn(t, store, want)
				defer k.stop()
				pass(time.Minute)
				first, writes := store.now()
				if first == nil || writes != 1 || k.resyncsSoFar() != 1 || k.shownProblem() != "" {
					t.Fatalf("%d writes, %d resyncs, problem %q, want one write and one resync", writes, k.resyncsSoFar(), k.shownProblem())
				}

				if owner := first.Annotations[new(OwnConfiguration).mark()]; owner != "agent/runtime-watcher/runtime-watcher" {
					t.Errorf("owner %q", owner)
				}

				store.change(test.edit)
				synctest.Wait()
				if have := k.shownProblem(); !strings.Contains(have, test.problem) {
					t.Errorf("problem %q, want %q", have, test.problem)
				}

				pass(5 * time.Second)
				live, _ := store.now()
				if len(admission.Differences(live)) > 0 || identityOf(live) != identityOf(first) {
					t.Errorf("after 5 s: %v", admission.Differences(live))
				}
				if !reflect.DeepEqual(live.Webhooks, first.Webhooks) || !maps.Equal(live.Annotations, first.Annotations) {
					t.Errorf("after 5 s: %v, want %v", live, first)
				}

				if k.resyncsSoFar() != 2 || k.shownProblem() == "" {
					t.Errorf("%d resyncs, problem %q, want two, and the problem for a heartbeat", k.resyncsSoFar(), k.shownProblem())
				}

				pass(time.Minute)
				if k.resyncsSoFar() != 2 || k.shownProblem() != "" {
					t.Errorf("%d resyncs, problem %q, want two and none", k.resyncsSoFar(), k.shownProblem())
				}
			})
		})
	}
}

// Without the right to watch, comparisons at intervals remain.
func TestWithoutAWatchWebhooksAreComparedAtIntervals(t *testing.T) {
	ca, serving := servingPair(t)
	want := intendedFor(serving, bundleFile(t, ca.PEM), "configmaps")
	synctest.Test(t, func(t *testing.T) {
		store := &clusterStore{}
		k := keepIn(t, unwatched{store}, want)
		defer k.stop()
		pass(time.Minute)
		store.change(func(*webhookConfiguration) *webhookConfiguration { return nil })
		pass(35 * time.Second)

		if live, _ := store.now(); live == nil {
			t.Error("the configuration is still missing")
		}
	})
}

// unreadable fails at the first reads, as while the network of a new node is not there yet.
type unreadable struct {
	*clusterStore

	until time.Time
}

func (s unreadable) Read(ctx context.Context) (*webhookConfiguration, error) {
	if time.Now().Before(s.until) {
		return nil, errors.New("no route to host")
	}
	return s.clusterStore.Read(ctx)
}

// A new agent that cannot read yet tries again after about a second, and then more and more seldom.
func TestAFailedFirstReadIsRetriedSoon(t *testing.T) {
	ca, serving := servingPair(t)
	want := intendedFor(serving, bundleFile(t, ca.PEM), "configmaps")
	synctest.Test(t, func(t *testing.T) {
		store := &clusterStore{}
		k := keepIn(t, unreadable{store, time.Now().Add(2500 * time.Millisecond)}, want)
		defer k.stop()
		pass(4 * time.Second)

		if live, _ := store.now(); live == nil {
			t.Error("no configuration 1.5 s after the first read is possible")
		}
	})

	synctest.Test(t, func(t *testing.T) {
		k := keepIn(t, unreadable{&clusterStore{}, time.Now().Add(2 * time.Hour)}, want)
		pass(time.Hour)
		k.stop()
		if tries := k.results[webhooksFailed]; tries < 100 || tries > 140 {
			t.Errorf("%d tries within an hour, want one in 30 s", tries)
		}
	})
}

type unwatched struct{ *clusterStore }

func (unwatched) Watch(context.Context, func()) error { return errors.New("403 Forbidden") }

// What has another owner, or none, is left alone. It is a problem unless it does the same.
func TestWebhooksOfOthersStay(t *testing.T) {
	ca, serving := servingPair(t)
	want := intendedFor(serving, bundleFile(t, ca.PEM), "configmaps")
	same, err := want.buildConfiguration()
	check(t, err)
	delete(same.Annotations, new(OwnConfiguration).mark())
	other := same.DeepCopy()
	other.Annotations[new(OwnConfiguration).mark()] = "an operator"
	other.Annotations[admission.RecordAnnotation] = admission.Record(other.Webhooks[:1])
	release := other.DeepCopy()
	release.Annotations[new(OwnConfiguration).mark()] = "agent/elsewhere/runtime-watcher"
	release.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: canary.FieldManager, Operation: metav1.ManagedFieldsOperationApply,
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:` + new(OwnConfiguration).mark() + `":{}}}}`),
	}}

	for name, test := range map[string]struct {
		live    *webhookConfiguration
		problem string
	}{
		"of another release": {release, `belongs to owner "agent/elsewhere/runtime-watcher"`},
		"applied by hand":    {same, ""},
		"of an operator":     {other, `belongs to owner "an operator"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &clusterStore{live: test.live}
				k := keepIn(t, store, want)
				defer k.stop()
				pass(time.Hour)

				if _, writes := store.now(); writes != 0 {
					t.Errorf("%d writes, want none", writes)
				}
				if have := k.shownProblem(); (have == "") != (test.problem == "") || !strings.Contains(have, test.problem) {
					t.Errorf("problem %q, want %q", have, test.problem)
				}
				if n := strings.Count(k.logged(), "\n"); n > 14 {
					t.Errorf("%d lines within an hour", n)
				}
			})
		})
	}
}

// A program that changes the webhooks after each repair is named, and each repair waits for longer.
// When it ends, the webhooks are back, and the problem ends.
func TestAContestIsNamedAndSlow(t *testing.T) {
	ca, serving := servingPair(t)
	want := intendedFor(serving, bundleFile(t, ca.PEM), "configmaps")
	synctest.Test(t, func(t *testing.T) {
		store := &clusterStore{edits: func(live *webhookConfiguration) {
			live.Webhooks[0].Rules = nil
			live.ManagedFields = append(live.ManagedFields, metav1.ManagedFieldsEntry{
				Manager: "enforcer", Operation: metav1.ManagedFieldsOperationUpdate, Time: new(metav1.NewTime(time.Now().Add(time.Second))),
			})
		}}

		k := keepIn(t, store, want)
		defer k.stop()
		pass(time.Hour)
		_, writes := store.now()

		// Each repair is two: an apply, and a configuration that is made again.
		if writes < 10 || writes > 70 {
			t.Errorf("%d writes within an hour, want a few that become rare", writes)
		}
		if have := k.shownProblem(); !strings.Contains(have, `contested by the field manager "enforcer"`) {
			t.Errorf("problem %q, want the program", have)
		}
		if k.resyncsSoFar() > 1 {
			t.Errorf("%d resyncs, want none while the contest lasts", k.resyncsSoFar())
		}

		store.mu.Lock()
		store.edits = nil
		store.mu.Unlock()
		pass(keepLongest*3/2 + 2*time.Minute)
		live, _ := store.now()
		if have := admission.Differences(live); len(have) > 0 || k.shownProblem() != "" {
			t.Errorf("after the contest: %v, problem %q", have, k.shownProblem())
		}
	})
}

// The admissions enforcer of AKS adds exclusions within a second, each time. They are no change, so
// nothing is repaired.
func TestAdditionsOfAPlatformAreNoContest(t *testing.T) {
	ca, serving := servingPair(t)
	want := intendedFor(serving, bundleFile(t, ca.PEM), "configmaps")
	synctest.Test(t, func(t *testing.T) {
		store := &clusterStore{edits: func(live *webhookConfiguration) {
			for n := range live.Webhooks {
				selector := live.Webhooks[n].NamespaceSelector
				selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
					Key: "control-plane", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"true"},
				})

				live.Webhooks[n].TimeoutSeconds = new(int32(1))
			}
		}}

		k := keepIn(t, store, want)
		defer k.stop()
		pass(time.Hour)
		if _, writes := store.now(); writes > 2 || k.shownProblem() != "" {
			t.Errorf("%d writes, problem %q, want the first ones, and none", writes, k.shownProblem())
		}

		store.change(func(*webhookConfiguration) *webhookConfiguration { return nil })
		pass(time.Hour)
		if live, _ := store.now(); live == nil || k.shownProblem() != "" || k.resyncsSoFar() != 2 {
			t.Errorf("after a deletion: problem %q, %d resyncs", k.shownProblem(), k.resyncsSoFar())
		}
	})
}

// Two replicas write once, also when both see a change.
func TestReplicasAgree(t *testing.T) {
	ca, serving := servingPair(t)
	want := intendedFor(serving, bundleFile(t, ca.PEM), "configmaps")
	synctest.Test(t, func(t *testing.T) {
		store := &clusterStore{}
		first := keepIn(t, store, want)
		second := keepIn(t, store, want)
		defer first.stop()
		defer second.stop()
		pass(time.Minute)
		_, before := store.now()
		store.change(func(*webhookConfiguration) *webhookConfiguration { return nil })
		pass(time.Hour)
		live, after := store.now()
		if live == nil || before > 2 || after-before > 2 {
			t.Errorf("%d writes, and %d after a change, want at most one of each replica", before, after-before)
		}

		for _, k := range []*keeping{first, second} {
			if k.shownProblem() != "" || k.resyncsSoFar() == 0 {
				t.Errorf("problem %q, %d resyncs", k.shownProblem(), k.resyncsSoFar())
			}
		}
	})
}

// In a rollout, the new replica has other settings, and the old one leaves them in place. It
// reports that they call for less if the rollout is slow.
func TestANewReplicaReplacesTheSettings(t *testing.T) {
	ca, serving := servingPair(t)
	bundle := bundleFile(t, ca.PEM)
	before := intendedFor(serving, bundle, "configmaps", "secrets")
	after := intendedFor(serving, bundle, "configmaps")
	synctest.Test(t, func(t *testing.T) {
		store := &clusterStore{}
		older := keepIn(t, store, before)
		pass(time.Minute)
		newer := keepIn(t, store, after)
		defer newer.stop()
		pass(keepLess - time.Second)

		if older.shownProblem() != "" {
			t.Errorf("problem %q in a short rollout, want none", older.shownProblem())
		}

		pass(time.Minute)
		if !strings.Contains(older.shownProblem(), "default.secrets") {
			t.Errorf("problem %q in a slow rollout, want the webhook that is missing", older.shownProblem())
		}

		older.stop()
		pass(time.Hour)
		want, err := after.buildConfiguration()
		check(t, err)
		live, writes := store.now()
		if writes != 2 || identityOf(live) != identityOf(want) {
			t.Errorf("%d writes, want those of two settings, and the newer ones", writes)
		}

		if newer.shownProblem() != "" {
			t.Errorf("problem %q, want none", newer.shownProblem())
		}
	})
}

// Replicas read a new bundle at different times. A replica keeps a bundle that verifies its own
// certificate.
func TestReplicasAgreeOnNewCAs(t *testing.T) {
	ca, serving := servingPair(t)
	other, _ := servingPair(t)
	old := bundleFile(t, ca.PEM)
	both := bundleFile(t, bytes.Join([][]byte{ca.PEM, other.PEM}, nil))
	late := bundleFile(t, ca.PEM)
	synctest.Test(t, func(t *testing.T) {
		store := &clusterStore{}
		prompt := keepIn(t, store, intendedFor(serving, old, "configmaps"))
		defer prompt.stop()
		slow := keepIn(t, store, intendedFor(serving, late, "configmaps"))
		defer slow.stop()
		pass(time.Minute)
		_, before := store.now()
		text, err := os.ReadFile(both)
		check(t, err)
		check(t, os.WriteFile(old, text, 0o600))
		pass(time.Minute)
		check(t, os.WriteFile(late, text, 0o600))
		pass(time.Hour)
		live, writes := store.now()
		if writes != before+1 || !bytes.Equal(bundleOf(live), text) {
			t.Errorf("%d writes for new CAs, want one", writes-before)
		}
	})
}

// changing is key material that a kubelet replaces.
type changing struct {
	mu     sync.Mutex
	source keys.Source
	ca     string // file
}

func (c *changing) Material() (*keys.Material, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.source.Material()
}

func (c *changing) change(t *testing.T, source keys.Source, bundle []byte) {
	t.Helper()

	c.mu.Lock()
	defer c.mu.Unlock()
	c.source = source
	check(t, os.WriteFile(c.ca, bundle, 0o600))
}

// A rotation without a common CA reaches the replicas at different times. Until then, API servers
// verify both.
func TestReplicasAgreeOnCAsWithoutOverlap(t *testing.T) {
	ca, serving := servingPair(t)
	newCA, newServing := servingPair(t)
	first := &changing{source: serving, ca: bundleFile(t, ca.PEM)}
	second := &changing{source: serving, ca: bundleFile(t, ca.PEM)}
	synctest.Test(t, func(t *testing.T) {
		store := &clusterStore{}
		prompt := keepIn(t, store, intendedFor(first, first.ca, "configmaps"))
		defer prompt.stop()
		slow := keepIn(t, store, intendedFor(second, second.ca, "configmaps"))
		defer slow.stop()
		pass(time.Minute)
		_, before := store.now()

		first.change(t, newServing, newCA.PEM)
		pass(2 * time.Minute)
		live, writes := store.now()
		both := bytes.Join([][]byte{newCA.PEM, ca.PEM}, nil)
		if writes != before+1 || !bytes.Equal(bundleOf(live), both) || prompt.shownProblem() != "" || slow.shownProblem() != "" {
			t.Errorf("%d writes, problems %q and %q, want one write, of both CAs", writes-before, prompt.shownProblem(), slow.shownProblem())
		}

		second.change(t, newServing, newCA.PEM)
		pass(keepOverlap + time.Minute)
		live, writes = store.now()
		if writes > before+3 || !bytes.Equal(bundleOf(live), newCA.PEM) {
			t.Errorf("%d writes, want at most one of each replica for the new CA alone", writes-before)
		}

		pass(time.Hour)
		if _, after := store.now(); after != writes || prompt.shownProblem() != "" || slow.shownProblem() != "" {
			t.Errorf("%d more writes, problems %q and %q", after-writes, prompt.shownProblem(), slow.shownProblem())
		}
	})
}

// An old API server drops the match conditions. Their absence is no change.
func TestAnOldAPIServerDropsConditions(t *testing.T) {
	ca, serving := servingPair(t)
	want := intendedFor(serving, bundleFile(t, ca.PEM), "configmaps")
	synctest.Test(t, func(t *testing.T) {
		store := &clusterStore{isOld: true}
		for range 2 { // The second agent finds the configuration.
			k := keepIn(t, store, want)
			pass(time.Hour)
			if _, writes := store.now(); writes > 2 || k.shownProblem() != "" || k.results[webhooksChanged] > 0 {
				t.Errorf("%d writes, problem %q, %v", writes, k.shownProblem(), k.results)
			}

			k.stop()
		}
	})
}

// A configuration with CAs that do not verify the certificate would never be called.
func TestWrongCAsAreNotWritten(t *testing.T) {
	_, serving := servingPair(t)
	other, _ := servingPair(t)
	synctest.Test(t, func(t *testing.T) {
		store := &clusterStore{}
		k := keepIn(t, store, intendedFor(serving, bundleFile(t, other.PEM), "configmaps"))
		defer k.stop()
		pass(time.Minute)

		if _, writes := store.now(); writes != 0 || !strings.Contains(k.shownProblem(), "refuse its certificate") {
			t.Errorf("%d writes, problem %q", writes, k.shownProblem())
		}
	})
}

// Without the rights, the agent reports it and tries again, more and more seldom. Nothing ends.
func TestRefusedWritesAreReported(t *testing.T) {
	ca, serving := servingPair(t)
	want := intendedFor(serving, bundleFile(t, ca.PEM), "configmaps")
	synctest.Test(t, func(t *testing.T) {
		store := &clusterStore{refused: errors.New("403 Forbidden")}
		k := keepIn(t, store, want)
		defer k.stop()
		pass(time.Hour)

		if !strings.Contains(k.shownProblem(), "403") || k.resyncsSoFar() != 0 {
			t.Errorf("problem %q, %d resyncs", k.shownProblem(), k.resyncsSoFar())
		}

		k.mu.Lock()
		tries := k.results[webhooksFailed]
		k.mu.Unlock()
		if tries < 100 || tries > 140 {
			t.Errorf("%d tries within an hour, want one in 30 s", tries)
		}

		store.mu.Lock()
		store.refused = nil
		store.mu.Unlock()
		pass(time.Minute)

		if live, _ := store.now(); live == nil || k.resyncsSoFar() != 1 || k.shownProblem() != "" {
			t.Errorf("with the rights: %v, %d resyncs, problem %q", live != nil, k.resyncsSoFar(), k.shownProblem())
		}
	})
}

// The object that is applied has all fields that a defaulting API server would fill.
func TestAppliedWebhooksAreComplete(t *testing.T) {
	ca, serving := servingPair(t)
	want := intendedFor(serving, bundleFile(t, ca.PEM), "configmaps")
	made, err := want.buildConfiguration()
	check(t, err)
	text, err := json.Marshal(made)
	check(t, err)

	for _, field := range []string{`"objectSelector":{}`, `"timeoutSeconds":2`, `"matchPolicy":"Equivalent"`} {
		if !bytes.Contains(text, []byte(field)) {
			t.Errorf("want %s in %s", field, text)
		}
	}
}

// The token of an agent writes a whole configuration that calls for less, as a replica with other
// settings, and puts the first one back before its time is over. Each time is followed by a resync,
// it is reported, and the second time ends soon.
func TestAForgedReplicaIsReportedAndEnds(t *testing.T) {
	ca, serving := servingPair(t)
	bundle := bundleFile(t, ca.PEM)
	want := intendedFor(serving, bundle, "configmaps", "secrets")
	forged := intendedFor(serving, bundle, "configmaps")
	less, err := forged.buildConfiguration()
	check(t, err)
	synctest.Test(t, func(t *testing.T) {
		store := &clusterStore{}
		k := keepIn(t, store, want)
		defer k.stop()
		pass(time.Minute)
		first, _ := store.now()
		as := func(text *webhookConfiguration) {
			store.change(func(live *webhookConfiguration) *webhookConfiguration {
				next := text.DeepCopy()
				next.UID, next.ManagedFields = live.UID, live.ManagedFields
				return next
			})
		}

		as(less)
		pass(35 * time.Second)
		if have := k.shownProblem(); !strings.Contains(have, "default.secrets") {
			t.Errorf("problem %q after 35 s, want the webhook that is missing", have)
		}

		pass(75 * time.Second)
		as(first)
		pass(10 * time.Second)
		if k.resyncsSoFar() != 2 || k.shownProblem() != "" {
			t.Errorf("%d resyncs, problem %q, want two and none", k.resyncsSoFar(), k.shownProblem())
		}

		as(less)
		pass(15 * time.Second)
		live, _ := store.now()
		if !reflect.DeepEqual(live.Webhooks, first.Webhooks) || k.resyncsSoFar() != 3 {
			t.Errorf("after the second time: %d webhooks, %d resyncs", len(live.Webhooks), k.resyncsSoFar())
		}
	})
}

// A replica that calls for more is no loss. It is neither reported nor replaced within a rollout.
func TestAReplicaThatCallsForMoreIsNoProblem(t *testing.T) {
	ca, serving := servingPair(t)
	bundle := bundleFile(t, ca.PEM)
	synctest.Test(t, func(t *testing.T) {
		store := &clusterStore{}
		older := keepIn(t, store, intendedFor(serving, bundle, "configmaps"))
		defer older.stop()
		pass(time.Minute)
		newer := keepIn(t, store, intendedFor(serving, bundle, "configmaps", "secrets"))
		defer newer.stop()
		pass(keepPeer - time.Second)

		if _, writes := store.now(); writes != 2 || older.shownProblem() != "" || older.resyncsSoFar() != 1 {
			t.Errorf("%d writes, problem %q, %d resyncs, want two, none and one", writes, older.shownProblem(), older.resyncsSoFar())
		}
	})
}

// A foreign annotation makes another program change the webhooks after each repair, as
// cert-manager's does. The contest ends with the annotation. Without a contest, annotations of
// others stay.
func TestAForeignAnnotationEndsWithItsContest(t *testing.T) {
	const injects, of = "cert-manager.io/inject-apiserver-ca", "argocd.argoproj.io/tracking-id"
	ca, serving := servingPair(t)
	want := intendedFor(serving, bundleFile(t, ca.PEM), "configmaps")
	synctest.Test(t, func(t *testing.T) {
		store := &clusterStore{edits: func(live *webhookConfiguration) {
			for n := range live.Webhooks {
				if live.Annotations[injects] != "" {
					live.Webhooks[n].ClientConfig.CABundle = []byte("that of the API server")
				}
			}
		}}

		k := keepIn(t, store, want)
		defer k.stop()
		pass(time.Minute)
		annotate := func(name string) {
			store.change(func(live *webhookConfiguration) *webhookConfiguration {
				live.Annotations[name] = "true"
				store.edits(live)
				return live
			})
		}

		annotate(of)
		pass(time.Minute)
		if live, writes := store.now(); writes != 1 || live.Annotations[of] == "" {
			t.Errorf("%d writes, annotations %v", writes, live.Annotations)
		}

		annotate(injects)
		pass(time.Minute)
		live, _ := store.now()
		if live.Annotations[injects] != "" || !bytes.Equal(bundleOf(live), ca.PEM) {
			t.Errorf("after a minute: annotations %v, CAs %.40q", live.Annotations, bundleOf(live))
		}
	})
}
