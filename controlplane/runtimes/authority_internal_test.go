package runtimes

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
)

// issuer answers one call of Reconcile after the other. The last answer repeats.
type issuer struct {
	Certificates

	answers []outcome
	calls   []time.Duration // since begun
	begun   time.Time
}

type outcome struct {
	after time.Duration
	phase certificates.Phase
	err   error
}

func (i *issuer) Reconcile(context.Context) (certificates.Status, error) {
	now := i.answers[min(len(i.calls), len(i.answers)-1)]
	i.calls = append(i.calls, time.Since(i.begun))
	return certificates.Status{
		Phase: now.phase, Confirming: now.phase == certificates.PhaseConfirming, RequeueAfter: now.after,
	}, now.err
}

func TestKeepCertificates(t *testing.T) {
	for name, test := range map[string]struct {
		answers []outcome
		lasts   time.Duration
		want    []time.Duration // of the calls
	}{
		// At least 1 s, then 3 s after the error, then as long as the status demands.
		"waits as the status demands": {
			[]outcome{{}, {after: 10 * time.Second, err: errors.New("API server is down")}, {after: time.Minute}},
			100 * time.Second,
			[]time.Duration{0, time.Second, 4 * time.Second, 64 * time.Second},
		},
		// cert-manager is not installed, and stays so: 3 s, 6 s, ... 5 min.
		"backs off": {
			[]outcome{{err: errors.New("no matches for kind")}},
			1000 * time.Second,
			[]time.Duration{
				0, 3 * time.Second, 9 * time.Second, 21 * time.Second, 45 * time.Second, 93 * time.Second,
				189 * time.Second, 381 * time.Second, 681 * time.Second, 981 * time.Second,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				set := &issuer{begun: time.Now(), answers: test.answers}
				ctx, stop := context.WithTimeout(t.Context(), test.lasts)
				defer stop()
				if err := KeepCertificates(set).Start(ctx); err != nil || ctx.Err() == nil {
					t.Errorf("it ends with %v, want no error at the end of its context", err)
				}

				if !slices.Equal(set.calls, test.want) {
					t.Errorf("calls after %v, want %v", set.calls, test.want)
				}
			})
		})
	}
}

// A manager starts a part on the leader alone, unless the part says otherwise.
func TestKeepCertificatesLeads(t *testing.T) {
	if part, ok := KeepCertificates(&issuer{}).(manager.LeaderElectionRunnable); ok && !part.NeedLeaderElection() {
		t.Error("each replica issues certificates")
	}
}

func TestARotationLooksAtAllRuntimesOnce(t *testing.T) {
	const (
		stable, reissuing, confirming = certificates.PhaseStable, certificates.PhaseReissuing, certificates.PhaseConfirming
		failed                        = ""
	)

	tests := map[string]struct {
		phases []certificates.Phase
		looks  int
	}{
		"no rotation":        {[]certificates.Phase{stable, stable}, 0},
		"one that waits":     {[]certificates.Phase{stable, reissuing, confirming, confirming, failed, confirming, certificates.PhaseSwitching, stable}, 1},
		"two":                {[]certificates.Phase{reissuing, confirming, stable, reissuing, confirming, stable}, 2},
		"found on the start": {[]certificates.Phase{failed, confirming, confirming}, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				issuer := &issuer{begun: time.Now()}
				for _, phase := range test.phases {
					now := outcome{after: 10 * time.Second, phase: phase}
					if phase == failed {
						now.err = errors.New("the API server is away")
					}

					issuer.answers = append(issuer.answers, now)
				}

				r := &reconciler{certificates: issuer, opts: Options{}.withDefaults()}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				looks := 0
				go func() { ended <- r.keepAuthority(func() { looks++ }).Start(ctx) }()

				for range 10 * len(test.phases) {
					time.Sleep(time.Second)
				}

				stop()
				if err := <-ended; err != nil || looks != test.looks || len(issuer.calls) < len(test.phases) {
					t.Errorf("%d looks after %d phases, want %d after %d: %v", looks, len(issuer.calls), test.looks, len(test.phases), err)
				}
			})
		})
	}
}

// A Secret for all runtimes is read once a minute, so that a rotation reaches them.
func TestASharedSecretIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := newPlane(t)
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kcp", Name: "registry"}}
		r := newReconciler(t, plane, nil)
		where := sharedKey{client.ObjectKeyFromObject(secret), corev1.DockerConfigJsonKey}
		want := func(content string) {
			t.Helper()
			if have, err := r.readSharedSecret(t.Context(), where); string(have) != content || (err == nil) != (content != "") {
				t.Errorf("%q, error %v, want %q", have, err, content)
			}
		}

		none, err := r.readSharedSecret(t.Context(), sharedKey{key: "any"})
		if none != nil || err != nil {
			t.Errorf("%q, error %v without a name, want neither", none, err)
		}

		want("") // There is none.
		check(t, plane.Create(t.Context(), secret))
		want("") // It is empty.

		for _, content := range []string{"{}", `{"auths":{}}`} {
			secret.Data = map[string][]byte{corev1.DockerConfigJsonKey: []byte(content)}
			check(t, plane.Update(t.Context(), secret))
			<-time.After(sharedSecretAge)
			want(content)
		}

		check(t, plane.Delete(t.Context(), secret))
		want(`{"auths":{}}`)
		<-time.After(sharedSecretAge)
		want("")
	})
}
