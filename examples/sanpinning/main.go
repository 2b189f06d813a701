// Sanpinning is an operator in two replicas, in one process and without a cluster. Each runtime can
// trigger only itself: 15 senders try to get an event accepted. Then the leader stops, and the
// other replica takes over. The program prints each answer, and fails if one is not as expected.
//
// Start with operator.go, the set-up of an operator, and listener.go, the verifier. attempts.go has
// the senders, replica.go and lease.go replace the cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, verifier)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sanpinning:", err)
		os.Exit(1)
	}
}

// run makes the certificates, starts the replicas, and makes all attempts.
func run(ctx context.Context, stdout io.Writer, verify verifierFor) error {
	pki, err := newPKI()
	if err != nil {
		return err
	}
	attempts, err := pki.attempts()
	if err != nil {
		return err
	}
	s := newScene(pki, verify)
	first, err := s.replica(ctx, "replica-1")
	if err != nil {
		return err
	}
	err = first.lead(ctx)
	if err == nil {
		err = report(ctx, stdout, s, first, attempts)
	}
	if err != nil {
		return errors.Join(err, first.stop())
	}
	return s.handOver(ctx, stdout, first, attempts[0])
}

// handOver stops the leader while another replica waits. The attempt is one of a runtime for
// itself.
func (s *scene) handOver(ctx context.Context, stdout io.Writer, first *replica, a attempt) error {
	second, err := s.replica(ctx, "replica-2")
	if err != nil {
		return errors.Join(err, first.stop())
	}
	fmt.Fprint(stdout, titleReplicas)
	fmt.Fprintf(stdout, rowFormat, "SITUATION", "ASKED", "ANSWER", "REASON", "RECONCILED BY")
	standby := a
	standby.want = outcome{status: http.StatusServiceUnavailable, reason: "not_ready"}
	err = errors.Join(
		reportReplica(ctx, stdout, s, "both replicas run", first, a),
		reportReplica(ctx, stdout, s, "both replicas run", second, standby),
		first.stop(), second.lead(ctx))
	a.want.by = second.name
	return errors.Join(err, reportReplica(ctx, stdout, s, "replica-1 has stopped", second, a), second.stop())
}
