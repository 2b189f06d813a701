package runtimes

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/controlplane/certificates"
)

// phases are what an issuer says, one after the other, each 10 s after the last.
type phases struct {
	Certificates

	all  []string
	next int
}

func (p *phases) Reconcile(context.Context) (certificates.Status, error) {
	phase := p.all[min(p.next, len(p.all)-1)]
	p.next++
	if phase == "" {
		return certificates.Status{}, errors.New("the API server is away")
	}
	return certificates.Status{Phase: phase, Confirming: phase == "Confirming", RequeueAfter: 10 * time.Second}, nil
}

func TestARotationLooksAtAllRuntimesOnce(t *testing.T) {
	const (
		stable, reissuing, confirming = "Stable", "Reissuing", "Confirming"
		failed                        = ""
	)
	tests := map[string]struct {
		phases []string
		looks  int
	}{
		"no rotation": {[]string{stable, stable}, 0},
		"one that waits": {[]string{
			stable, reissuing, confirming, confirming, failed, confirming,
			"Switching", stable,
		}, 1},
		"two":                {[]string{reissuing, confirming, stable, reissuing, confirming, stable}, 2},
		"found on the start": {[]string{failed, confirming, confirming}, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				issuer := &phases{all: test.phases}
				r := &reconciler{certificates: issuer, opts: Options{}.withDefaults()}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				looks := 0
				go func() { ended <- r.keepAuthority(func(context.Context) { looks++ }).Start(ctx) }()
				for range 10 * len(test.phases) {
					time.Sleep(time.Second)
				}
				stop()
				if err := <-ended; err != nil || looks != test.looks || issuer.next < len(test.phases) {
					t.Errorf("%d looks after %d phases, want %d after %d: %v", looks, issuer.next, test.looks, len(test.phases), err)
				}
			})
		})
	}
}
