package runtimes_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
	"github.com/runtime-watcher/runtime-watcher/controlplane/runtimes"
)

// issuer answers one call of Reconcile after the other. The last answer repeats.
type issuer struct {
	runtimes.Certificates

	answers []answer
	calls   []time.Duration // since begun
	begun   time.Time
}

type answer struct {
	after time.Duration
	err   error
}

func (i *issuer) Reconcile(context.Context) (certificates.Status, error) {
	now := i.answers[min(len(i.calls), len(i.answers)-1)]
	i.calls = append(i.calls, time.Since(i.begun))
	return certificates.Status{RequeueAfter: now.after}, now.err
}

func TestKeepCertificates(t *testing.T) {
	failed := errors.New("API server is down")
	synctest.Test(t, func(t *testing.T) {
		set := &issuer{begun: time.Now(), answers: []answer{{after: 0}, {10 * time.Second, failed}, {after: time.Minute}}}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- runtimes.KeepCertificates(set).Start(ctx) }()
		time.Sleep(100 * time.Second)
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("it ends before its context, with %v", err)
		default:
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("it ends with %v, want no error at the end of its context", err)
		}
		// At least 1 s, then 3 s after the error, then as long as the status demands.
		want := []time.Duration{0, time.Second, 4 * time.Second, 64 * time.Second}
		if !slices.Equal(set.calls, want) {
			t.Errorf("calls after %v, want %v", set.calls, want)
		}
	})
}

// cert-manager is not installed, and stays so.
func TestKeepCertificatesBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := &issuer{begun: time.Now(), answers: []answer{{0, errors.New("no matches for kind")}}}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- runtimes.KeepCertificates(set).Start(ctx) }()
		time.Sleep(time.Hour)
		stop()
		if err := <-ended; err != nil || len(set.calls) < 10 || len(set.calls) > 20 {
			t.Errorf("%d attempts in an hour, each with a line, %v; want 10 to 20", len(set.calls), err)
		}
	})
}

// TestKeepCertificatesLeads runs a manager that does not lead at first.
func TestKeepCertificatesLeads(t *testing.T) {
	lease := newLease("another")
	mgr, err := ctrl.NewManager(&rest.Config{Host: "127.0.0.1:1"}, ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"}, MapperProvider: noMapper,
		LeaderElection: true, LeaderElectionResourceLockInterface: lease,
		LeaseDuration: new(2 * time.Hour), RenewDeadline: new(time.Hour), RetryPeriod: new(10 * time.Millisecond),
	})
	set := &leading{lease: lease, called: make(chan string, 1)}
	if err := errors.Join(err, mgr.Add(runtimes.KeepCertificates(set))); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	for range 5 {
		<-lease.read // The manager runs, and sees that another one leads.
	}
	lease.set(resourcelock.LeaderElectionRecord{})
	if holder := <-set.called; holder != lease.Identity() {
		t.Errorf("Reconcile is called while %s leads, want %s", holder, lease.Identity())
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// leading reports the leader at the first call of Reconcile.
type leading struct {
	runtimes.Certificates

	lease  *lease
	called chan string
}

func (l *leading) Reconcile(context.Context) (certificates.Status, error) {
	select {
	case l.called <- l.lease.holder():
	default:
	}
	return certificates.Status{RequeueAfter: time.Minute}, nil
}

func noMapper(*rest.Config, *http.Client) (meta.RESTMapper, error) {
	return meta.NewDefaultRESTMapper(nil), nil
}

// lease is a lock in memory. It reports each reading while a test receives them.
type lease struct {
	mu     sync.Mutex
	record resourcelock.LeaderElectionRecord
	read   chan struct{}
}

func newLease(holder string) *lease {
	now := resourcelock.LeaderElectionRecord{HolderIdentity: holder, LeaseDurationSeconds: 3600}
	return &lease{record: now, read: make(chan struct{})}
}

func (l *lease) holder() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.record.HolderIdentity
}

func (l *lease) set(record resourcelock.LeaderElectionRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.record = record
}

func (l *lease) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	select {
	case l.read <- struct{}{}:
	default:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	record := l.record
	raw, err := json.Marshal(record)
	return &record, raw, err
}

func (l *lease) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "leases"}, "it")
}

func (l *lease) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	l.set(record)
	return nil
}

func (l *lease) RecordEvent(string) {}
func (l *lease) Identity() string   { return "this" }
func (l *lease) Describe() string   { return "in memory" }
