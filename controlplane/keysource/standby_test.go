package keysource_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/runtime-watcher/runtime-watcher/controlplane/keysource"
	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// held is a lease that another replica holds, and has renewed at each look.
type held struct{ resourcelock.Interface }

func (held) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return &resourcelock.LeaderElectionRecord{HolderIdentity: "another", RenewTime: metav1.Now()}, []byte(rand.Text()), nil
}

func (held) Identity() string { return "this" }
func (held) Describe() string { return "held" }

// A standby listens, too: it must follow its certificate, or it serves an expired one.
func TestStandbyFollowsKeyMaterial(t *testing.T) {
	t.Parallel()
	const patience = 5 * time.Minute
	ca := must(testpki.NewCA("ca", testpki.Options{}))
	volume := testpki.NewVolume(t.TempDir())
	reloads := map[string]chan time.Time{"files": make(chan time.Time, 10), "Secret": make(chan time.Time, 10)}
	stored := &secrets{}
	write := func() {
		leaf := stored.issue(ca)
		if err := volume.Write(testpki.Files(leaf, ca)); err != nil {
			t.Fatal(err)
		}
	}
	write()
	caPath, cert, key := volume.Paths()
	files := must(keys.NewFiles(keys.Paths{CA: caPath, Certificate: cert, Key: key}, keys.FilesOptions{
		Poll: 10 * time.Millisecond, Hooks: keys.FilesHooks{Reloaded: func(_, at time.Time) { reloads["files"] <- at }},
	}))
	secret := must(keysource.NewSecret(stored, types.NamespacedName{Name: "listener"}, keys.FilesOptions{
		Poll: 10 * time.Millisecond, Hooks: keys.FilesHooks{Reloaded: func(_, at time.Time) { reloads["Secret"] <- at }},
	}))
	mgr := standby(t)
	if err := errors.Join(mgr.Add(files), mgr.Add(secret)); err != nil {
		t.Fatal(err)
	}
	run(t, mgr)
	write()
	for name, reloaded := range reloads {
		select {
		case <-reloaded:
		case <-time.After(patience):
			t.Errorf("%s: nothing is reloaded on a standby", name)
		}
	}
}

// standby is a manager that never leads, and never needs its API server.
func standby(t *testing.T) manager.Manager {
	t.Helper()
	mgr, err := manager.New(&rest.Config{Host: "http://127.0.0.1:1"}, manager.Options{
		Logger:                              logr.Discard(),
		Metrics:                             metricsserver.Options{BindAddress: "0"},
		LeaderElection:                      true,
		LeaderElectionResourceLockInterface: held{},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			return meta.NewDefaultRESTMapper(nil), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return mgr
}

func run(t *testing.T, mgr manager.Manager) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the manager ended with %v", err)
		}
	})
}
